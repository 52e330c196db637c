"""Two or three images in one prompt, asked by their order."""

from __future__ import annotations

from tools.pocket.data import printed, scenes
from tools.pocket.data.sample import Picture, Sample, Stream, ask_all
from tools.pocket.data.scene_questions import caption, plural, questions
from tools.pocket.data.scenes import Scene
from tools.pocket.data.words import COLOURS, ORDINALS, SHAPES

COUNTS = (1, 1, 2, 2, 3)


def _ask_about(ordinal: str, question: str) -> str:
    """``question`` about the image of that order."""
    return f"Look at the {ordinal} image. {question}"


def _more(first: Scene, second: Scene, stream: Stream) -> tuple[str, str]:
    rng = stream.rng
    by_shape = rng.random() < 0.5
    wanted = rng.choice([*first.things, *second.things])
    value = wanted.shape if by_shape else wanted.colour
    if rng.random() < 0.15:
        value = rng.choice(SHAPES if by_shape else COLOURS)
    a, b = (sum(value in (t.shape, t.colour) for t in s.things) for s in (first, second))
    verdict = "the first" if a > b else "the second" if b > a else "both the same"
    noun = plural(value) if by_shape else f"{value} objects"
    # Spelling both counts first makes the verdict a matter of reading them.
    answer = f"The first has {a}, the second has {b}: {verdict}."
    return f"Which image has more {noun}?", answer


def compare(
    stream: Stream, turns: int = 3, names: tuple[str, ...] = (), more: float = 0.2
) -> Sample:
    """Two or three pictures, most of them scenes, and questions by order. Skill "compare".

    ``names`` are the fonts of printed pictures, by default the split's; ``more`` is the share of
    questions about two scenes that ask which has more of a kind.
    """
    rng = stream.rng
    count = rng.choice((2, 2, 3))
    shown: list[tuple[Picture, Scene | None, str]] = []
    for i in range(count):
        part = stream.fork(f"image{i}")
        if rng.random() < 0.2:
            text = printed.random_text(part)
            shown.append((printed.one_line(part, text, low=20, names=names)[0], None, text.upper()))
        else:
            scene = scenes.random_scene(part, counts=COUNTS)
            shown.append((scenes.picture(scene, part), scene, caption(scene)))
    drawn = [scene for _, scene, _ in shown if scene is not None]
    pairs: dict[str, str] = {}
    for _ in range(turns * 3):
        k = rng.randrange(count)
        _, about, text = shown[k]
        kind = rng.random()
        if kind < more and count == 2 and len(drawn) == 2:
            pairs.setdefault(*_more(drawn[0], drawn[1], stream))
        elif about is None:
            pairs.setdefault(f"What does the {ORDINALS[k]} image say?", text)
        elif kind < (1 + more) / 2:
            pairs.setdefault(f"What is in the {ORDINALS[k]} image?", text)
        else:
            for question, reply in questions(about, rng, 1):
                pairs.setdefault(_ask_about(ORDINALS[k], question), reply)
        if len(pairs) >= turns:
            break
    messages, answer = ask_all(range(count), list(pairs.items()), rng.random() < 0.3)
    return Sample(
        "compare",
        messages,
        answer,
        tuple(picture for picture, _, _ in shown),
        score="attributes",
        detail={"images": count},
    )
