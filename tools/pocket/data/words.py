"""Word lists shared by the generators, so that every modality speaks the same language."""

from __future__ import annotations

from tools.pocket.corpus import CITIES, COLOURS, NAMES, NUMBERS, PLACES, SHAPES, SIZES, THINGS

DIGITS = NUMBERS[:10]
ORDINALS = ("first", "second", "third")


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Printed besides random strings; the two parts share no word.
PRINT_TRAIN = _split(
    "apple river stone paper garden window music winter table light house bread water train "
    "cloud horse chair school open stop exit push pull sale hotel bus taxi park zone north "
    "south east west radio video coffee menu juice milk salt sugar lemon grape peach onion "
    "rice soup cake pizza fish bird dog cat lion tiger mouse sheep goat duck frog bear wolf "
    "king queen prince lady doctor nurse pilot police judge actor singer writer cook farmer "
    "red green blue yellow orange purple black white grey brown pink gold silver one two "
    "three four five six seven eight nine zero ten monday friday june july march april may "
    "door floor wall roof stairs lamp desk bed sofa phone clock watch glass plate spoon fork "
    "knife shoe shirt coat hat glove belt ring box bag key card coin bank shop store market"
)
PRINT_HELDOUT = _split(
    "bridge flower street summer castle engine forest island jacket kitten ladder magnet "
    "needle oyster pencil quartz rabbit saddle ticket valley wizard yogurt zipper acorn beach "
    "candy dance eagle flame globe honey igloo jelly koala llama maple nylon ocean piano "
    "quilt robot snake torch uncle vowel wagon yacht zebra hello world omni data model token "
    "press enter left right up down start end new old fast slow high low day night sun moon"
)

# Everything the audio tokenizer learns to keep apart and the model to write down.
SPOKEN_CORE = (*DIGITS, *COLOURS)
SPOKEN_EXTRA = (*SHAPES, *SIZES, "ten", "left", "right", "top", "bottom", "yes", "no", "hello")
SPOKEN_GLUE = ("the", "is", "a", "and", "on")
SPOKEN = (*SPOKEN_CORE, *SPOKEN_EXTRA, *SPOKEN_GLUE)
TONES = ("low", "high", "rising", "falling", "beep")

__all__ = [
    "CITIES",
    "COLOURS",
    "DIGITS",
    "NAMES",
    "NUMBERS",
    "ORDINALS",
    "PLACES",
    "PRINT_HELDOUT",
    "PRINT_TRAIN",
    "SHAPES",
    "SIZES",
    "SPOKEN",
    "SPOKEN_CORE",
    "SPOKEN_EXTRA",
    "SPOKEN_GLUE",
    "THINGS",
    "TONES",
]
