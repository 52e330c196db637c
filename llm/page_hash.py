"""The hash chain over pages of token ids that names KV pages below device memory.

SGLang computes it in an extension that it compiles when the first request needs it, which takes
seconds and a compiler. The prefix tree has the same function built in (in Rust), so values must
agree byte for byte: SHA-256 over the previous page's digest and the page's ids as 32-bit words,
or, if any id of the page needs more, a tag byte and 64-bit words. With drafting, a unit is a pair
of neighbouring ids.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

_WIDE_TAG = b"\xff"
_MAX_NARROW = 0xFFFFFFFF


def page_hashes(
    token_ids: Any, prior_digest: bytes | None, page_size: int | None = None
) -> str | list[str]:
    """Hexadecimal digests of every page of ``token_ids``, or one of all if no page size is given.

    ``token_ids``: SGLang's RadixKey or a sequence of ids (or of equally long tuples of ids); the
    last page may be short. ``prior_digest``: 32 bytes of the page before. Raises ValueError for
    negative ids, another digest length or a page size below 1.
    """
    if prior_digest is not None and len(prior_digest) != 32:
        raise ValueError(f"a page digest has 32 bytes, got {len(prior_digest)}")
    if page_size is not None and page_size < 1:
        raise ValueError(f"page_size must be at least 1, got {page_size}")
    units = _units(token_ids)
    if units.size and int(units.min()) < 0:
        raise ValueError("token ids must not be negative")
    step = page_size or max(len(units), 1)
    # One conversion for all pages; which pages are wide is known from their largest id.
    narrow = units.astype("<u4")
    wide: np.ndarray = np.greater(units, _MAX_NARROW).any(axis=1)
    any_wide = bool(wide.any())
    digests: list[str] = []
    digest = prior_digest or b""
    for start in range(0, max(len(units), 0 if page_size else 1), step):
        page = slice(start, start + step)
        state = hashlib.sha256(digest)
        if any_wide and wide[page].any():
            state.update(_WIDE_TAG)
            state.update(units[page].astype("<u8").tobytes())
        else:
            state.update(narrow[page].tobytes())
        digest = state.digest()
        digests.append(digest.hex())
    return digests if page_size is not None else digests[0]


def _units(token_ids: Any) -> np.ndarray:
    """Ids as int64 [units, ids per unit]."""
    length = len(token_ids)
    pairs = bool(getattr(token_ids, "is_bigram", False))
    raw_of = getattr(token_ids, "raw_token_ids", None)
    raw = raw_of() if raw_of is not None else getattr(token_ids, "token_ids", token_ids)
    if pairs:
        ids = np.asarray(raw[: length + 1], dtype=np.int64)
        if length and len(ids) < length + 1:
            raise ValueError("pairs of ids need one id more than there are pairs")
        return np.stack((ids[:length], ids[1 : length + 1]), axis=1)
    ids = np.asarray(raw[:length], dtype=np.int64)
    return ids.reshape(length, -1) if length else ids.reshape(0, 1)
