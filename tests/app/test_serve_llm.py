"""Naming prefixes, and choosing the deployment of a length bucket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest
import yaml

from app.serve_llm import LengthClass, RoutedLlm
from app.settings import ROOT, SettingsError, load_settings, parse_settings
from app.stages import StageDied
from encoders.embedding import Embedding
from llm.buckets import BucketPolicy
from llm.reply import ReplyHead
from llm.router.policy import RoutingPolicy
from llm.router.prompt import Route
from llm.router.report import Report
from llm.router.view import RouterView
from llm.router.views import view_of

POCKET = yaml.safe_load((ROOT / "configs/pocket.yaml").read_text())
HEAD = ReplyHead(200, "text/event-stream")


class Deployment:
    """Answers with its name; its router sends every chat to its one replica."""

    def __init__(self, name: str) -> None:
        self.name, self.routes, self.closed = name, [], 0
        self.view: RouterView | None = None

    def start_router(self) -> RouterView:
        self.view = view_of(self.name, RoutingPolicy(), 1 << 16)
        self.view.set_replicas([f"{self.name}-replica"])
        return self.view

    async def chat(
        self, body: Mapping[str, Any], embeddings: Sequence[Embedding], route: Route | None = None
    ) -> AsyncGenerator[ReplyHead | bytes, None]:
        assert route is not None
        self.routes.append(route)
        if self.view is not None:
            self.view.sent(f"{self.name}-replica", route.id, route.prompt, 1.0)
        try:
            yield HEAD
            yield self.name.encode()
            yield b"more"
        finally:
            self.closed += 1

    async def models(self) -> dict[str, Any]:
        return {"id": self.name}

    async def ready(self) -> bool:
        return self.name != "sleepy"

    async def stats(self) -> dict[str, Any]:
        return {"name": self.name}


def routed(*names: str, bounds: tuple[int, ...] = ()) -> tuple[RoutedLlm, list[Deployment]]:
    deployments = [Deployment(name) for name in names]
    classes = [LengthClass(each, each.name) for each in deployments]
    policy = BucketPolicy(bounds, busy_tokens=1000, idle_tokens=0) if bounds else None
    return RoutedLlm(classes, policy, 64), deployments


def body(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def document(**llm: Any) -> dict[str, Any]:
    return {**POCKET, "llm": {**POCKET["llm"], **llm}}


async def ask(llm: RoutedLlm, text: str) -> str:
    pieces = [piece async for piece in llm.chat(body(text), [])]
    assert pieces[0] == HEAD
    assert isinstance(pieces[1], bytes)
    return pieces[1].decode()


async def test_every_chat_is_named_and_loads_until_its_first_token() -> None:
    llm, (only,) = routed("one")
    view = only.start_router()
    stream = llm.chat(body("x" * 400), [])
    assert await anext(stream) == HEAD
    assert view.loads() == {"one-replica": only.routes[0].prompt.tokens}
    assert only.routes[0].prompt.tokens == 101
    await anext(stream)
    assert view.loads() == {"one-replica": 0}
    await stream.aclose()
    assert only.closed == 1
    # The same chat again is expected to be there.
    assert view.rank(only.routes[0].prompt)[0].matched == 100
    view.check()


async def test_a_chat_that_fails_or_is_left_is_no_load() -> None:
    llm, (only,) = routed("one")
    view = only.start_router()
    stream = llm.chat(body("x" * 400), [])
    await anext(stream)
    await stream.aclose()
    assert (view.loads(), only.closed) == ({"one-replica": 0}, 1)


async def test_lengths_go_to_their_classes_by_uncached_work() -> None:
    llm, (short, long) = routed("short", "long", bounds=(100, 10_000))
    # As long as no router has started, by length alone.
    assert await ask(llm, "hello") == "short"
    assert await ask(llm, "x" * 4000) == "long"
    view = short.start_router()
    long.start_router()
    assert await ask(llm, "y" * 4000) == "long"
    prompt = long.routes[-1].prompt
    view.report("short-replica", Report(5.0, 0.0, dict.fromkeys(prompt.blocks, True)))
    assert await ask(llm, "y" * 4000) == "short"


async def test_a_busy_class_overflows_and_an_empty_one_is_skipped() -> None:
    llm, (short, long) = routed("short", "long", bounds=(100, 10_000))
    view, other = short.start_router(), long.start_router()
    view.report("short-replica", Report(5.0, 5000.0, {}))
    assert await ask(llm, "hello") == "long"
    other.report("long-replica", Report(5.0, 5000.0, {}))
    assert await ask(llm, "hallo") == "short"
    view.set_replicas([])
    assert await ask(llm, "salut") == "long"
    other.set_replicas([])
    with pytest.raises(StageDied):
        await ask(llm, "x" * 4000)
    other.set_replicas(["long-replica"])
    assert await ask(llm, "x" * 4000) == "long"


@pytest.mark.parametrize("may_sleep", [False, True])
async def test_without_its_last_replica_a_chat_is_refused_unless_it_wakes_one(
    may_sleep: bool,
) -> None:
    only = Deployment("lonely")
    llm = RoutedLlm([LengthClass(only, only.name)], None, 64, may_sleep)
    view = only.start_router()
    view.set_replicas([])
    # None has come up yet: the chat waits for the first one.
    assert await ask(llm, "hello") == "lonely"
    view.set_replicas(["lonely-replica"])
    assert await ask(llm, "hello") == "lonely"
    view.set_replicas([])
    if may_sleep:
        assert await ask(llm, "hello") == "lonely"
        return
    with pytest.raises(StageDied, match="language model: its last replica is gone"):
        await ask(llm, "hello")
    view.set_replicas(["lonely-replica"])
    assert await ask(llm, "hello") == "lonely"


async def test_all_classes_must_be_ready() -> None:
    llm, _ = routed("short", "sleepy", bounds=(1, 2))
    assert not await llm.ready()
    awake, _ = routed("short", "long", bounds=(1, 2))
    assert await awake.ready()
    assert await awake.models() == {"id": "long"}
    assert await awake.stats() == {"name": "short"}
    with pytest.raises(ValueError, match="2 deployments do not fit"):
        RoutedLlm([LengthClass(Deployment("a"), "a")] * 2, None, 64)


CLASSES = [
    {"up_to_tokens": 65_536, "replicas": 3},
    {
        "up_to_tokens": 262_144,
        "autoscaling": {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 8},
        "chunked_prefill_size": 1024,
    },
    {"up_to_tokens": 1_000_000},
]


def test_buckets_are_deployments_that_scale_by_themselves() -> None:
    llm = parse_settings(document(buckets={"classes": CLASSES}), "test").llm
    found = llm.deployments()
    assert list(found) == ["LLM-64K", "LLM-256K", "LLM-1000000"]
    assert found["LLM-64K"].deployment_options()["num_replicas"] == 3
    scaling = found["LLM-256K"].deployment_options()["autoscaling_config"]
    assert scaling["max_replicas"] == 4
    sizes = [each.chunked_prefill_size for each in found.values()]
    assert sizes == [llm.chunked_prefill_size, 1024, llm.chunked_prefill_size]
    assert llm.buckets.policy() == BucketPolicy((65_536, 262_144, 1_000_000))
    assert list(parse_settings(document(), "test").llm.deployments()) == ["LLM"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": {"classes": CLASSES[:1]}}, "none or at least two, ascending"),
        ({"buckets": {"classes": CLASSES[::-1]}}, "none or at least two, ascending"),
        ({"buckets": {"idle_tokens": 9.0, "busy_tokens": 1.0}}, "at most busy_tokens"),
        (
            {"buckets": {"classes": CLASSES}, "router": {"policy": "power_of_two"}},
            "length buckets need 'kv_affinity'",
        ),
        (
            {
                "buckets": {
                    "classes": [
                        CLASSES[0],
                        {
                            "up_to_tokens": 100_000,
                            "autoscaling": {
                                "min_replicas": 0,
                                "max_replicas": 1,
                                "target_ongoing_requests": 1,
                            },
                        },
                    ]
                }
            },
            "a length bucket needs at least 1",
        ),
    ],
)
def test_buckets_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_settings(document(**changes), "test")


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "configs").glob("*.yaml")))
def test_case_92_nothing_that_a_chat_must_pass_scales_to_zero(name: str) -> None:
    settings = load_settings(ROOT / "configs" / name)
    for section in (settings.gateway, *settings.llm.deployments().values()):
        options = section.deployment_options()
        scaling = options.get("autoscaling_config")
        assert (scaling["min_replicas"] if scaling else options["num_replicas"]) >= 1
