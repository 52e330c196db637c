"""Finding benchmarks: one module each under ``bench/benchmarks``, with ``run(quick)``; some also
take ``checkpoint``, the directory of a model."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from bench.result import Result

_FOLDER = Path(__file__).parent / "benchmarks"


def names() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules([str(_FOLDER)]) if m.name[0] != "_")


def sentence(name: str) -> str:
    """The first line of a benchmark's docstring, read without importing it."""
    docstring = ast.get_docstring(ast.parse((_FOLDER / f"{name}.py").read_text()))
    return (docstring or "").partition("\n")[0]


def load(name: str) -> Callable[..., Result]:
    """Raises KeyError naming what there is."""
    if name not in names():
        raise KeyError(f"no benchmark {name!r}; there are: {', '.join(names())}")
    run: Callable[..., Result] = import_module(f"bench.benchmarks.{name}").run
    return run
