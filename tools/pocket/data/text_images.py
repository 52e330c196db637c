"""Reading tasks: a printed word or number; the answer is in capitals."""

from __future__ import annotations

from tools.pocket.data import printed
from tools.pocket.data.sample import Sample, Stream, assistant, user

READ = ("Read the text.", "What does the sign say?", "What is written here?", "What does it say?")


def read(
    stream: Stream,
    low: float = printed.LOW_SIZE,
    high: float = printed.HIGH_SIZE,
    names: tuple[str, ...] = (),
) -> Sample:
    """One line of 1 to 6 characters, ``low`` to ``high`` pixels per em after the model's resize.

    ``names`` are the fonts, by default the split's. Skill "read"; ``detail["print"]`` is the size
    after the resize.
    """
    text = printed.random_text(stream)
    picture, shown = printed.one_line(stream, text, low, high, names)
    question = stream.rng.choice(READ)
    return Sample(
        "read",
        [user(question, 0) if stream.rng.random() < 0.3 else user(0, question)],
        assistant(text.upper()),
        (picture,),
        score="characters",
        detail={"print": shown},
    )
