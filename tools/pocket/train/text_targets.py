"""Where answers about a text look in it, and which words of it are counted; training only.

``pointer_targets`` is about media. Every function takes an example of one question; its text is
found again in its ids.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from tools.pocket.data.text_tasks import OCCUR
from tools.pocket.special_tokens import EOS
from tools.pocket.train.example import Example
from tools.pocket.train.pointers import Pointer

Decode = Callable[[list[int]], str]
MOST = 9  # occurrences that are told apart


class Tokens:
    """The characters that each token of ``ids`` covers in their ``text``."""

    def __init__(self, ids: Sequence[int], decode: Decode) -> None:
        parts = [decode([token]) for token in ids]
        edges = [0]
        for part in parts:
            edges.append(edges[-1] + len(part))
        self.text, self.spans = "".join(parts), list(pairwise(edges))

    def over(self, start: int, stop: int) -> tuple[int, ...]:
        """Numbers of the tokens that hold some of these characters."""
        return tuple(i for i, (a, b) in enumerate(self.spans) if a < stop and start < b)


def copied(
    example: Example, order: Sequence[int], decode: Decode
) -> tuple[list[Pointer], list[tuple[int, tuple[int, ...]]]]:
    """For answers that give the items of the prompt's passage in this ``order``: each token points
    at its source, the end at what follows the last item, or precedes the first when turned round;
    and (position, (occurrence of the item, occurrence of the one before it)) of the tokens of the
    passage and of the answer, from 0: the same item often stands there twice.
    """
    ((first, stop),) = example.turns
    prompt, answer = Tokens(example.ids[:first], decode), Tokens(example.ids[first:stop], decode)
    thought = answer.text.find("</think>")
    begin = 0 if thought < 0 else thought + len("</think>")
    passage = prompt.text.rindex(": ") + 2
    items = re.compile(r"\S+" if " " in answer.text else r"\w")
    sources = list(items.finditer(prompt.text, passage, prompt.text.rindex(EOS)))
    told = list(items.finditer(answer.text, begin, answer.text.rindex(EOS)))
    labels = _occurrences(prompt, sources, 0) + _occurrences(answer, told, first)
    found = []
    for number, item in zip(order, told, strict=True):
        shift = sources[number].start() - item.start()
        for token in answer.over(begin, item.end()):  # with what separates it from the one before
            a, b = (min(max(at, begin), item.end()) for at in answer.spans[token])
            found.append(Pointer(first - 1 + token, prompt.over(a + shift, b + shift)))
        begin = item.end()
    if list(order) == sorted(order):
        found.append(Pointer(stop - 2, prompt.over(sources[-1].end(), sources[-1].end() + 1)))
    elif list(order) == sorted(order, reverse=True):
        found.append(Pointer(stop - 2, prompt.over(passage - 2, passage - 1)))
    return found, labels


def _occurrences(
    text: Tokens, items: Sequence[re.Match[str]], begin: int
) -> list[tuple[int, tuple[int, ...]]]:
    """What separates an item from the next one belongs to it; ``begin``: the position of the text's
    first token."""
    counts, before = Counter[str](), 0
    found: dict[int, tuple[int, ...]] = {}
    for item in items:
        number = min(counts[item.group()], MOST - 1)
        found |= dict.fromkeys(text.over(item.start(), item.end() + 1), (number, before))
        counts[item.group()] += 1
        before = number
    return [(begin + token, classes) for token, classes in found.items()]


def occurrences(
    example: Example, decode: Decode
) -> tuple[list[Pointer], list[tuple[int, tuple[int, ...]]]]:
    """Of the question how often a word occurs: all tokens of the answer point at where it does
    for the last time, or at the question's own word; and (position, (count,)) of the last token
    of each listed word: how often it has occurred so far. Nothing for other questions."""
    ((first, stop),) = example.turns
    prompt = Tokens(example.ids[:first], decode)
    asked = OCCUR.search(prompt.text)
    if asked is None:
        return [], []
    last, counts = asked.span("word"), dict[str, int]()
    labels: list[tuple[int, tuple[int, ...]]] = []
    for item in re.compile(r"\w+").finditer(prompt.text, *asked.span("items")):
        word = item.group()
        counts[word] = counts.get(word, 0) + 1
        labels.append((prompt.over(*item.span())[-1], (min(counts[word], MOST),)))
        if word == asked["word"]:
            last = item.span()
    labels.append((prompt.over(*asked.span("word"))[-1], (0,)))
    target = prompt.over(*last)[-1:]
    return [Pointer(position - 1, target) for position in range(first, stop)], labels
