#!/usr/bin/env bash
# Builds the virtual environment: bootstrap.sh VENV REQUIREMENTS
# Needs Python 3.11 or 3.12 with pip or venv, and a C++ compiler; says so in a sentence otherwise.
set -euo pipefail
venv=$1 requirements=$2
python=${PYTHON:-python3}

die() { echo "omniserve: $*" >&2; exit 1; }

command -v "$python" >/dev/null || die "no '$python' found; install Python 3.11 or 3.12, or name one: make env PYTHON=/path/to/python3.12"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in
  3.11|3.12) ;;
  *) die "$python is Python $version; this project needs 3.11 or 3.12. Name one: make env PYTHON=/path/to/python3.12" ;;
esac
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "this environment is pinned for Linux on x86_64, this machine is $(uname -s) on $(uname -m)"
command -v c++ >/dev/null || command -v g++ >/dev/null || die "no C++ compiler found; install one (Debian: apt-get install g++)"
"$python" -c 'import venv, ensurepip' 2>/dev/null || die "$python has no venv module; install it (Debian: apt-get install python3-venv)"
free_mb=$(df -Pm "$(dirname "$venv")" | awk 'NR==2 {print $4}')
[ -d "$venv" ] || [ "$free_mb" -ge 10000 ] || die "the environment takes 7 GB and needs 10 GB free; only ${free_mb} MB are free here"
memory_mb=$(awk '/MemTotal/ {print int($2/1024)}' /proc/meminfo)
[ "$memory_mb" -ge 7000 ] || die "serving needs 8 GB of memory; this machine has ${memory_mb} MB"

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
[ -x "$venv/bin/uv" ] || "$venv/bin/python" -m pip install --quiet "uv==0.13.9"
# Compiled once here: importing the engine from source takes its processes twice as long.
"$venv/bin/uv" pip install --quiet --no-deps --compile-bytecode --python "$venv/bin/python" -r "$requirements"
"$venv/bin/uv" pip install --quiet --no-deps --no-build-isolation --python "$venv/bin/python" --editable .
# The language model's decoder kernel; without it the model runs in plain PyTorch.
"$venv/bin/python" -m llm.cpu.build || echo "omniserve: no decoder kernel; the language model will be slower on this CPU" >&2
