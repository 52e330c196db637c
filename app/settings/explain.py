"""Settings errors for people: each names the key, the value and what is allowed."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def explain(error: Mapping[str, Any], root: type[BaseModel]) -> str:
    """One pydantic error as a sentence."""
    location: tuple[int | str, ...] = tuple(error["loc"])
    key = dotted(location)
    kind = error["type"]
    if kind == "extra_forbidden":
        return _unknown(location, root)
    if kind == "value_error":
        reason = str(error["ctx"]["error"])
        return f"{key}: {reason}" if key else reason
    field = field_at(location, root)
    if field is None:
        allowed = str(error["msg"])
    elif location and isinstance(location[-1], int):
        allowed = f"it must be {_entry(field)}"
    else:
        allowed = f"it must be {describe(field)}"
    if kind == "missing":
        return f"{key} is missing; {allowed}"
    return f"{key} is {_shown(error['input'])}; {allowed}"


def dotted(location: Sequence[int | str]) -> str:
    """A key path: images.max_pixels, fetch.ports[1]."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def field_at(location: Sequence[int | str], root: type[BaseModel]) -> FieldInfo | None:
    """The field that a key path ends in (the list, for a path into a list)."""
    model: type[BaseModel] | None = root
    field: FieldInfo | None = None
    for step in location:
        if isinstance(step, int) or model is None:
            continue
        field = model.model_fields.get(step)
        if field is None:
            return None
        model = _model_of(field.annotation)
    return field


def describe(field: FieldInfo) -> str:
    """What a field accepts: "a whole number from 1 to 64, or null"."""
    kind, optional = _strip_null(field.annotation)
    text = _kind(kind)
    bounds = _bounds(field.metadata)
    if bounds:
        text += f" {bounds}"
    elif any(getattr(rule, "pattern", None) for rule in field.metadata):
        # A regular expression is no help to people; the description of such a field says it.
        text = field.description or text
    return text + (", or null" if optional else "")


def _entry(field: FieldInfo) -> str:
    """What an entry of a list field accepts."""
    kind, _ = _strip_null(field.annotation)
    return _kind(get_args(kind)[0])


def _kind(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        choices = [_shown(choice) for choice in get_args(kind)]
        return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    if origin is list:
        return f"a list (each entry {_kind(get_args(kind)[0])})"
    if origin is dict or kind is dict:
        return "a mapping"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"a section with the keys {', '.join(kind.model_fields)}"
    return _WORDS.get(kind, "a value of another type")


def _bounds(metadata: Sequence[Any]) -> str:
    lower = upper = ""
    for rule in metadata:
        if isinstance(rule, annotated_types.Ge):
            lower = f"from {rule.ge}"
        elif isinstance(rule, annotated_types.Gt):
            lower = f"above {rule.gt}"
        elif isinstance(rule, annotated_types.Le):
            upper = f"to {rule.le}" if lower.startswith("from") else f"up to {rule.le}"
        elif isinstance(rule, annotated_types.Lt):
            upper = f"below {rule.lt}"
        elif isinstance(rule, annotated_types.MinLen):
            lower = "that is not empty"
    return " and ".join(filter(None, [lower, upper])).replace(" and to ", " to ")


def _strip_null(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) in (Union, types.UnionType):
        rest = [option for option in get_args(kind) if option is not type(None)]
        return rest[0], len(rest) < len(get_args(kind))
    return kind, False


def _model_of(kind: Any) -> type[BaseModel] | None:
    kind, _ = _strip_null(kind)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _unknown(location: Sequence[int | str], root: type[BaseModel]) -> str:
    section = field_at(location[:-1], root)
    model = _model_of(section.annotation) if section else root
    known = list(model.model_fields) if model else []
    name = str(location[-1])
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"known keys are {', '.join(known)}"
    return f"{dotted(location)} is not a setting; {hint}"


def _shown(value: Any) -> str:
    text = repr(value)
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    return text if len(text) <= 60 else text[:60] + "..."
