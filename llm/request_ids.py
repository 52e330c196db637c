"""Request ids that tell which request and which of its choices (``n``) they belong to.

SGLang names each parallel choice with a fresh random id, so neither an abort by request nor a
seed by choice could find it. Ours are ``<root>`` for a request and ``<root>-<k>`` for its parts:
k = 0 computes the shared prefix, k = 1..n are the choices.
"""

from __future__ import annotations

from typing import Any

_parts: dict[str, int] = {}


def root_of(rid: str) -> str:
    """The id that the request came with (SGLang appends ``_<i>`` for lists of prompts)."""
    return rid.split("-")[0].split("_")[0]


def choice_of(rid: str) -> int:
    """Index of the choice, from 0; 0 too where a request has only one."""
    return max(0, int(rid.rpartition("-")[2]) - 1) if "-" in rid else 0


def next_part(request: Any) -> str:
    """Replacement of ``GenerateReqInput.regenerate_rid``: name the next part."""
    rid = request.rid[0] if isinstance(request.rid, list) else request.rid
    root = root_of(rid)
    request.rid = f"{root}-{_parts.setdefault(root, 0)}"
    _parts[root] += 1
    return str(request.rid)


def forget(root: str) -> None:
    """The request is over."""
    _parts.pop(root, None)
