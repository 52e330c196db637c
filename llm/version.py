"""The one SGLang release this project's patches were written against."""

from __future__ import annotations

from importlib.metadata import version

PINNED_SGLANG = "0.5.23"


def check_sglang_version(found: str | None = None) -> None:
    """Refuse any SGLang other than the pinned one.

    The CPU platform and the processor replace private functions of SGLang, whose meaning may
    change with any release. Raises RuntimeError naming both versions.
    """
    found = found or version("sglang")
    if found != PINNED_SGLANG:
        raise RuntimeError(
            f"omniserve needs sglang=={PINNED_SGLANG} and found {found}: its patches "
            "(docs/sglang-patches.md) replace private functions of that release. "
            "Install requirements/cpu.txt or requirements/gpu.txt."
        )
