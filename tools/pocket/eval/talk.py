"""Forty prompts of small talk, and what a sensible reply to each holds.

A pattern is searched in the reply, whatever the case. Most prompts are worded otherwise than in
the training data.
"""

from __future__ import annotations

import re

_HELLO = r"hello|hi\b|good"
_UNKNOWN = r"do not know|only know what|cannot|can not|not know"
_SMALL = r"small model|small"
_ABLE = r"images?|read|see|hear|sound|clips?|speech"

PROMPTS: tuple[tuple[str, str], ...] = (
    ("Hello", _HELLO),
    ("Hello there!", _HELLO),
    ("Hi!", _HELLO),
    ("Good morning", _HELLO),
    ("Good evening", _HELLO),
    ("Hey!", _HELLO),
    ("How are you?", r"well|fine|good"),
    ("How are you doing?", r"well|fine|good|help"),
    ("Are you well?", r"well|fine|good|yes"),
    ("Thank you.", r"welcome"),
    ("Thanks a lot!", r"welcome"),
    ("Thank you for your help.", r"welcome"),
    ("Bye!", r"bye"),
    ("Goodbye!", r"bye"),
    ("See you!", r"bye|see you"),
    ("Who are you?", _SMALL),
    ("What are you?", _SMALL),
    ("Tell me who you are.", _SMALL),
    ("Are you a person?", r"no\b.*model|small model"),
    ("Are you human?", r"no\b.*model|small model"),
    ("What can you do?", _ABLE),
    ("What can you do for me?", _ABLE),
    ("How can you help?", _ABLE),
    ("What are your limits?", r"small|not|cannot"),
    ("What can you not do?", r"small|not|cannot"),
    ("Do you know everything?", r"small|not|no\b"),
    ("Can you see images?", r"yes|send"),
    ("Can you hear?", r"yes|send"),
    ("Can you watch a clip?", r"yes|send"),
    ("Can you sing?", r"no\b"),
    ("Can you draw an image?", r"no\b"),
    ("Describe the image.", r"not see|send"),
    ("What is in the image?", r"not see|send"),
    ("What do you hear?", r"not hear|send"),
    ("Who is the president of Oslo?", _UNKNOWN),
    ("What is the weather in Rome?", _UNKNOWN),
    ("How many people live in Tokyo?", _UNKNOWN),
    ("Who won the game in Lima?", _UNKNOWN),
    ("What will happen tomorrow?", _UNKNOWN),
    ("Who wrote this book?", _UNKNOWN),
)


def sensible(reply: str, pattern: str) -> bool:
    """A short reply that holds the pattern and repeats no word three times in a row."""
    short = 0 < len(reply) <= 300
    stuck = re.search(r"\b(\w+)( \1\b){2}", reply, re.IGNORECASE)
    return short and not stuck and re.search(pattern, reply, re.IGNORECASE) is not None
