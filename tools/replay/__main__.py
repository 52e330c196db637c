"""``python -m tools.replay QUESTION``: replay a trace on a simulated fleet and print the answer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.replay import experts, questions, report, traces
from tools.replay.generate import agents, length_mix
from tools.replay.servegen import multimodal
from tools.replay.workload import Workload

GENERATED = ("agents", "length-mix", "multimodal")


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        answer = _answer(given)
    except (FileNotFoundError, ValueError) as error:
        print(f"tools.replay: {error}", file=sys.stderr)
        return 2
    print(report.text(answer))
    if given.out is not None:
        for path in report.write(answer, given.out, given.question):
            print(path)
    return 0


def load(name: str, requests: int | None, rate: float, seed: int) -> Workload:
    """A trace or a generated workload, of at most ``requests``, ``rate`` times as fast."""
    if name == "agents":
        workload = agents(max(2, (requests or 4000) // 3), 5, 2.0, seed)
    elif name == "length-mix":
        workload = length_mix(requests or 4000, 10.0, seed)
    elif name == "multimodal":
        workload = multimodal(requests or 4000, seed)
    else:
        workload = traces.load(name)
    if requests is not None:
        workload = workload.first(requests)
    return workload if rate == 1 else workload.at_rate(rate)


def _answer(given: argparse.Namespace) -> questions.Answer:
    workload = load(given.workload, given.requests, given.rate, given.seed)

    def say(what: str) -> None:
        print(f"... {what}", file=sys.stderr, flush=True)

    match given.question:
        case "compare":
            return questions.compare(
                workload, given.nodes, given.load, given.model, given.host_gb, say
            )
        case "capacity":
            return questions.capacity(
                workload, given.ttft, given.share, given.model, given.host_gb, say
            )
        case "window":
            return questions.window(workload, given.nodes, given.load, given.model, say)
        case "tiers":
            return questions.tiers(
                workload, given.nodes, given.load, given.model, given.host_gb, given.store_gb, say
            )
        case "buckets":
            return questions.buckets(
                workload, given.nodes, given.ranks, given.gpus, given.model, say
            )
        case "experts":
            return experts.experts(
                workload, given.model, tuple(given.sizes), given.attention_gpus, given.seed
            )
    return questions.scale(workload, given.sizes, given.model, given.report_s, given.coarser, say)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.replay", description=__doc__)
    named = parser.add_subparsers(dest="question", required=True, metavar="QUESTION")

    def question(
        name: str, text: str, workload: str, nodes: int | None = 8
    ) -> argparse.ArgumentParser:
        one = named.add_parser(name, help=text, description=text)
        known = [*traces.MOONCAKE, *traces.AZURE, *GENERATED]
        one.add_argument("--workload", choices=known, default=workload, help=f"default {workload}")
        one.add_argument("--requests", type=int, help="at most so many (default: all)")
        one.add_argument("--rate", type=float, default=1.0, help="so many times as fast")
        one.add_argument("--model", choices=["v2.5", "pro"], default="v2.5")
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--out", type=Path, help="folder for a PNG and an HTML page")
        if nodes is not None:
            one.add_argument("--nodes", type=int, default=nodes, help="engines in the fleet")
        return one

    one = question("compare", "which router, which queue", "conversation")
    one.add_argument("--load", type=float, help="share of saturation (default: as recorded)")
    one.add_argument("--host-gb", type=float, default=0.0, help="host memory per node for KV")
    one = question("capacity", "how many nodes for this trace at this SLO", "conversation", None)
    one.add_argument("--ttft", type=float, default=1.0, help="seconds to the first token")
    one.add_argument("--share", type=float, default=0.9, help="of requests that must keep it")
    one.add_argument("--host-gb", type=float, default=0.0)
    one = question("window", "what the sliding window buys", "conversation", 4)
    one.add_argument("--load", type=float, default=0.7)
    one = question("tiers", "what host memory and a store buy", "conversation", 4)
    one.add_argument("--load", type=float, default=0.7)
    one.add_argument("--host-gb", type=float, default=500.0, help="per node")
    one.add_argument("--store-gb", type=float, default=20_000.0, help="of the whole fleet")
    one = question("buckets", "what length buckets buy", "length-mix", 24)
    one.add_argument("--ranks", type=int, default=8, help="attention ranks of an engine")
    one.add_argument("--gpus", type=int, default=16, help="GPUs of an engine")
    one = question("experts", "how far expert parallelism may shrink", "conversation", None)
    one.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128])
    one.add_argument("--attention-gpus", type=int, default=4, help="GPUs of an attention rank")
    one = question("scale", "the same at cluster size", "conversation", None)
    one.add_argument("--sizes", type=int, nargs="+", default=[8, 80, 800])
    one.add_argument("--coarser", type=int, default=4, help="trace blocks in one block")
    one.add_argument("--report-s", type=float, default=5.0, help="between a replica's reports")
    return parser


if __name__ == "__main__":
    sys.exit(main())
