"""Measure the pocket model's skills through the real application.

python -m tools.pocket.eval [--quick] [--check] [--url URL | --checkpoint DIR] [--only NAME]

Starts the application itself unless ``--url`` names a running one. ``--check`` exits 1 where a
bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tools.pocket.eval.client import Client
from tools.pocket.eval.measure import Result, accept_lengths, lines, measure
from tools.pocket.eval.rows import table

CONFIG = Path("configs/pocket.yaml")
SHIPPED = Path("models/pocket")


@contextmanager
def serving(url: str | None, checkpoint: Path) -> Iterator[str]:
    """The address of the application: a running one, or one started with ``checkpoint``."""
    if url is not None:
        yield url
        return
    from bench.application import application

    document = yaml.safe_load(CONFIG.read_text())
    document["model"]["path"] = str(checkpoint.resolve())
    # Steps that try what not drafting costs would count as drafts that were refused.
    document["llm"]["mtp"]["adaptive"] = False
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "eval.yaml"
        config.write_text(yaml.safe_dump(document))
        with application(str(config)) as running:
            yield running.url


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the pocket model's skills.")
    parser.add_argument("--quick", action="store_true", help="a sample, under a minute of work")
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed")
    parser.add_argument("--url", help="a running application, e.g. http://127.0.0.1:8000")
    parser.add_argument("--checkpoint", type=Path, default=SHIPPED)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--wrong", type=int, default=0, help="show so many wrong answers a row")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    everything = table(options.checkpoint)
    rows = [row for row in everything if options.only in row.name]
    results: list[Result] = []
    with serving(options.url, options.checkpoint) as url:
        client = Client(url)
        for row in rows:
            results.append(measure(client, row, options.quick))
            print(lines(results[-1:])[-1], flush=True)
            for wrong in results[-1].wrong[: options.wrong]:
                print(f"    {wrong}", flush=True)
        if not options.only or options.only == "MTP":
            results += accept_lengths(client, everything, options.quick)
        client.close()
    print("\n" + "\n".join(lines(results)))
    if options.out:
        figures = {r.name: {"value": r.value, "bar": r.bar, "of": r.total} for r in results}
        options.out.write_text(json.dumps(figures, indent=2) + "\n")
    return int(options.check and not all(result.met for result in results))


if __name__ == "__main__":
    sys.exit(main())
