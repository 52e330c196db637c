"""The keys of media positions in the prefix tree: whole identities, and the place in the item."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from llm.processors.mimo_v2 import _item
from llm.prompt import MediaSpan

ROWS = torch.zeros(64, 8)


def keys(identity: bytes, count: int = 64) -> tuple[int, ...]:
    span = MediaSpan("image", ((5, count),), ROWS[:count], identity)
    return tuple(_item(span).padding_sequence(count))


def test_no_two_of_many_identities_share_a_key_at_any_place() -> None:
    # case 25
    rng = random.Random(0)
    items = [keys(rng.randbytes(32)) for _ in range(1000)]
    for place in range(4):
        assert len({item[place] for item in items}) == len(items)
    assert len({key for item in items for key in item}) == 4 * len(items)


@pytest.mark.parametrize("byte", range(32))
def test_every_byte_of_an_identity_counts(byte: int) -> None:
    # case 25: nothing is cut off, as 16 or 64 bits of the digest would be
    plain = bytes(32)
    changed = plain[:byte] + b"\x01" + plain[byte + 1 :]
    assert keys(plain) != keys(changed)
    assert keys(plain) == keys(bytes(plain))


def test_neighbouring_rows_differ_and_no_key_is_a_token_of_text() -> None:
    # case 25: one value repeated over the span would make shifted parts of an item look alike
    found = keys(bytes(range(32)))
    assert all(a != b for a, b in itertools.pairwise(found))
    assert found[:61] != found[1:62]
    assert min(found) > 1_000_000
