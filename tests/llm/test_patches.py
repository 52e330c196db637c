"""Patches reach every holder of a name, and refuse a name or release that is not there."""

from __future__ import annotations

import sys
import types

import pytest

from llm.cpu.patches import Patch, apply
from llm.version import PINNED_SGLANG, check_sglang_version


def new() -> str:
    return "new"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    """Two fake SGLang modules: one defines names, the other imported them."""

    def old() -> str:
        return "old"

    class Owner:
        method = old

    names = ("sglang.fake_source", "sglang.fake_consumer")
    found = {name: types.ModuleType(name) for name in names}
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    source, consumer = (vars(found[name]) for name in names)
    source.update(old=old, missing_kernel=None, Owner=Owner)
    consumer.update(renamed=old, missing_kernel=None)
    return found


def test_functions_methods_and_missing_kernels(modules: dict[str, types.ModuleType]) -> None:
    source, consumer = (vars(m) for m in modules.values())
    patches = [
        Patch("sglang.fake_source", "old", new),
        Patch("sglang.fake_source", "Owner.method", new),
        Patch("sglang.fake_source", "missing_kernel", new, also=("sglang.fake_consumer",)),
    ]
    apply(patches)
    apply(patches)
    assert source["old"] is new
    assert consumer["renamed"] is new
    assert source["Owner"].method is new
    assert source["missing_kernel"] is new
    assert consumer["missing_kernel"] is new


def test_a_missing_symbol_stops_the_start(modules: dict[str, types.ModuleType]) -> None:
    with pytest.raises(RuntimeError, match=r"sglang\.fake_source\.gone does not exist"):
        apply([Patch("sglang.fake_source", "gone", new)])


def test_another_release_is_refused() -> None:
    check_sglang_version(PINNED_SGLANG)
    with pytest.raises(RuntimeError, match=r"needs sglang==0\.5\.23 and found 0\.6\.0"):
        check_sglang_version("0.6.0")
