"""Compiling the decoder kernel: ``python -m llm.cpu.build``, part of ``make env``.

The library has a plain C interface and no dependency, so a compiler is all it takes. One file per
instruction set, named by the sources' digest: a checkout that moves to another machine, or whose
sources change, never loads code that does not fit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_SOURCES = Path(__file__).parent / "kernels"
_FLAGS = (
    *("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-Wno-psabi"),
    *("-fno-math-errno", "-fno-trapping-math"),
)

_AVX2 = ("avx2", "fma", "bmi1", "bmi2", "f16c")
# Best first: extensions as /proc/cpuinfo names them (the compiler calls bmi1 plain bmi).
LEVELS: dict[str, tuple[str, ...]] = {
    "avx512": (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "avx2": _AVX2,
}


def library(level: str) -> Path:
    """Where the library for an instruction set is, whether or not it has been built."""
    digest = hashlib.sha256(repr((_FLAGS, LEVELS)).encode())
    for source in sorted(_SOURCES.glob("*.[ch]*")):
        digest.update(source.read_bytes())
    return _SOURCES / "build" / f"decoder-{digest.hexdigest()[:16]}-{level}.so"


def best_level(flags: set[str] | None = None) -> str | None:
    """The best instruction set that this machine (or ``flags``) has, or None."""
    have = _cpu_flags() if flags is None else flags
    return next((level for level, needs in LEVELS.items() if have.issuperset(needs)), None)


def build() -> list[Path]:
    """Compile every level that is missing and drop what other sources left.

    Raises RuntimeError with the compiler's words when it fails.
    """
    wanted = [library(level) for level in LEVELS]
    wanted[0].parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor() as pool:
        list(pool.map(_compile, LEVELS, wanted))
    for file in wanted[0].parent.glob("*.so"):
        if file not in wanted:
            file.unlink()
    return wanted


def _compile(level: str, out: Path) -> None:
    if out.exists():
        return
    part = out.with_suffix(f".{os.getpid()}.part")
    command = [
        os.environ.get("CXX") or shutil.which("g++") or "c++",
        *_FLAGS,
        *(f"-m{'bmi' if name == 'bmi1' else name}" for name in LEVELS[level]),
        str(_SOURCES / "decoder.cpp"),
        *("-o", str(part)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the decoder kernel does not compile:\n{done.stderr[-4000:]}")
    part.replace(out)


def _cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


if __name__ == "__main__":
    build()
    sys.exit(0)
