"""Watching tasks: what happens in a clip, in which order, when, and what is said meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tools.pocket.data import clips, sounds
from tools.pocket.data.clips import Colours, Event, Script
from tools.pocket.data.sample import Clip, Sample, Sound, Stream, ask_all
from tools.pocket.data.sounds import RATE, VoiceSource, any_voice
from tools.pocket.data.words import SPOKEN_CORE

WHAT = ("What happens in the video?", "Describe the video.", "List the events.")
SAID = ("What is said in the video?", "Which words do you hear in the video?")
Pair = tuple[str, str]


def _noun(script: Script, event: Event) -> str:
    """The thing of an event by its colour at that moment and its shape."""
    thing = script.before(event)
    return f"{thing.colour} {thing.shape}"


def tell(script: Script) -> str:
    """A line for each event: its second, then what happens."""
    lines = [f"{e.stamp} the {_noun(script, e)} {e.verb}" for e in script.events]
    return "\n".join(lines)


def _question_verb(verb: str) -> str:
    """ "appears" to "appear": "When does the red circle appear?"."""
    head, _, rest = verb.partition(" ")
    return f"{head.removesuffix('s')} {rest}".strip()


def _event_pairs(script: Script, stream: Stream) -> list[Pair]:
    rng = stream.rng
    pairs = []
    for event in script.events:
        noun = _noun(script, event)
        pairs.append((f"When does the {noun} {_question_verb(event.verb)}?", event.stamp))
        pairs.append((f"What does the {noun} do at {event.stamp}?", f"it {event.verb}"))
    if len(script.events) > 1:
        first, last = script.events[0], script.events[-1]
        pairs.append(("What happens first?", f"the {_noun(script, first)} {first.verb}"))
        pairs.append(("What happens last?", f"the {_noun(script, last)} {last.verb}"))
    rng.shuffle(pairs)
    return pairs


def _colour_pairs(script: Colours, stream: Stream) -> list[Pair]:
    first, *rest = script.names
    told = ", ".join([f"first {first}", *(f"then {name}" for name in rest)])
    pairs = [(stream.rng.choice(("Which colours are shown, in order?", WHAT[1])), told)]
    for name, change in zip(rest, script.changes, strict=True):
        pairs.append(
            (f"When does it turn {name}?", f"{int(change) // 60:02d}:{int(change) % 60:02d}")
        )
    return pairs


def _sound_track(
    stream: Stream, times: np.ndarray, moments: Sequence[float], seconds: int, source: VoiceSource
) -> tuple[Sound, dict[float, str]]:
    """Noise all along, and spoken words, with the word that is said at each moment.

    A word lies wholly inside the share of sound of its moment's pair of frames, after the moment
    if there is room. Of two moments in one pair only the first gets a word.
    """
    rng = stream.rng
    track = np.zeros(seconds * RATE, np.float32)
    voice = source(stream)
    edges = [*times[::2], float(seconds)]
    words, said, pairs = [], {}, set()
    for moment in moments:
        pair = int(np.searchsorted(edges, moment, side="right"))
        if pair in pairs:
            continue
        pairs.add(pair)
        samples, word = sounds.spoken_word(stream, voice, rng.choice(SPOKEN_CORE))
        latest = edges[pair] - len(samples) / RATE - 0.02
        start = rng.uniform(moment, latest) if latest > moment else max(latest, edges[pair - 1])
        at = round(RATE * start)
        track[at : at + len(samples)] += samples[: len(track) - at]
        words.append((at / RATE, (at + len(samples)) / RATE, word))
        said[moment] = word
    return Sound(sounds.worn(stream, track), RATE, tuple(words)), said


def _said_pairs(script: Script, said: dict[float, str]) -> list[Pair]:
    return [
        (f"What is said when the {_noun(script, event)} {event.verb}?", said[event.time])
        for event in script.events
        if event.time in said
    ]


def watch(
    stream: Stream,
    turns: int = 3,
    seconds: int | None = None,
    sound: float = 0.3,
    source: VoiceSource = any_voice,
    colours: float = 0.2,
    busy: int = 1,
) -> Sample:
    """A clip and up to ``turns`` questions. Skill "watch"; ``detail["frames"]`` is how many frames
    the server samples. ``sound`` is the share of clips in which words are spoken at the events,
    ``colours`` that of clips of full-frame colours; ``busy`` as in ``clips.random_script``."""
    rng = stream.rng
    seconds = seconds or rng.choice(clips.SECONDS)
    fps = rng.choice((4, 5, 8, 10))
    times = clips.clip_of(_BLANK, seconds, fps).times()
    script: Script | Colours
    if rng.random() < colours:
        script = clips.random_colours(stream, times)
        moments = list(script.changes)
        pairs = _colour_pairs(script, stream)
    else:
        script = clips.random_script(stream, times, busy)
        moments = [event.time for event in script.events]
        pairs = [(rng.choice(WHAT), tell(script)), *_event_pairs(script, stream)]
    track: Sound | None = None
    if rng.random() < sound:
        track, said = _sound_track(stream, times, moments, seconds, source)
        spoken = [(rng.choice(SAID), " ".join(said.values()))]
        if isinstance(script, Script):
            spoken += _said_pairs(script, said)
        rng.shuffle(spoken)
        pairs = [*pairs[:1], *spoken[:2], *pairs[1:]]
    unique = list(dict(pairs).items())[: max(turns, 1)]
    rng.shuffle(unique)
    messages, answer = ask_all([0], unique, rng.random() < 0.3)
    clip: Clip = clips.clip_of(script, seconds, fps, track)
    detail = {"frames": len(times), "sound": track is not None}
    return Sample("watch", messages, answer, (clip,), score="events", detail=detail)


_BLANK = Colours(96, 96, ("black",), ())
