"""Page hashes against a plain transcription of the rule, one id at a time."""

from __future__ import annotations

import hashlib
import struct
from array import array
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm.page_hash import page_hashes

narrow = st.integers(0, 2**32 - 1)
any_id = st.one_of(st.integers(0, 300), narrow, st.integers(0, 2**63 - 1))


def naive(units: list[tuple[int, ...]], prior: bytes, page_size: int) -> list[str]:
    out = []
    for start in range(0, len(units), page_size):
        ids = [i for unit in units[start : start + page_size] for i in unit]
        wide = any(i > 0xFFFFFFFF for i in ids)
        body = b"\xff" if wide else b""
        body += b"".join(struct.pack("<Q" if wide else "<I", i) for i in ids)
        prior = hashlib.sha256(prior + body).digest()
        out.append(prior.hex())
    return out


class Key(SimpleNamespace):
    """As much of SGLang's RadixKey as the hash looks at."""

    def __len__(self) -> int:
        return len(self.token_ids) - (1 if self.is_bigram else 0)

    def raw_token_ids(self) -> Any:
        return self.token_ids


@settings(deadline=None)
@given(st.lists(any_id, max_size=40), st.integers(1, 9), st.booleans())
def test_ids(ids: list[int], page: int, chained: bool) -> None:
    prior = hashlib.sha256(b"before").digest() if chained else None
    expected = naive([(i,) for i in ids], prior or b"", page)
    assert page_hashes(ids, prior, page) == expected
    assert page_hashes(array("q", ids), prior, page) == expected
    assert page_hashes(Key(token_ids=array("q", ids), is_bigram=False), prior, page) == expected


@settings(deadline=None)
@given(st.lists(any_id, min_size=1, max_size=40), st.integers(1, 9))
def test_pairs_of_neighbours(ids: list[int], page: int) -> None:
    pairs = list(pairwise(ids))
    key = Key(token_ids=array("q", ids), is_bigram=True)
    assert page_hashes(key, None, page) == naive(pairs, b"", page)


@settings(deadline=None)
@given(st.lists(any_id, max_size=20))
def test_without_pages_there_is_one_hash(ids: list[int]) -> None:
    expected = naive([(i,) for i in ids], b"", len(ids)) if ids else [hashlib.sha256().hexdigest()]
    assert page_hashes(ids, None) == expected[0]


def test_ids_in_tuples() -> None:
    assert page_hashes([(1, 2), (3, 4)], None, 1) == naive([(1, 2), (3, 4)], b"", 1)


@pytest.mark.parametrize(
    ("ids", "prior", "page", "says"),
    [
        ([1], b"short", 1, "a page digest has 32 bytes, got 5"),
        ([1], None, 0, "page_size must be at least 1, got 0"),
        ([-1], None, 1, "must not be negative"),
    ],
)
def test_errors(ids: list[int], prior: bytes | None, page: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        page_hashes(ids, prior, page)
