"""``python -m bench NAME``: run one benchmark and print its JSON object on the last line."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from pathlib import Path

from bench import registry
from bench.setup import describe


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("name", nargs="?", help="which benchmark")
    parser.add_argument("--list", action="store_true", help="name all benchmarks")
    parser.add_argument("--quick", action="store_true", help="less work, under a minute")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    parser.add_argument("--out", type=Path, help="also write the JSON object to this file")
    parser.add_argument(
        "--checkpoint", type=Path, help="directory of another checkpoint than the configured one"
    )
    given = parser.parse_args(arguments)
    if given.list:
        for name in registry.names():
            print(f"{name:16} {registry.sentence(name)}")
        return 0
    if given.name is None:
        parser.error("name a benchmark, or --list")
    try:
        run = registry.load(given.name)
    except KeyError as error:
        parser.error(error.args[0])
    more = {}
    if given.checkpoint is not None:
        if "checkpoint" not in inspect.signature(run).parameters:
            parser.error(f"{given.name} takes no checkpoint")
        more["checkpoint"] = given.checkpoint.resolve()
    result = run(given.quick, **more)
    document = json.dumps(result.document(given.name, describe(given.quick)))
    if given.out:
        given.out.write_text(document + "\n")
    print(document, flush=True)
    return 1 if given.check and not result.met else 0


if __name__ == "__main__":
    sys.exit(main())
