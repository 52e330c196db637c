"""The probe inside SGLang's scheduler: hooks on its prefix cache, and a way to ask.

A `GetInternalStateReq` with our id as its `rid` is answered with the probe's states instead of the
engine's settings; any other is SGLang's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm.queue.engine import uncached_of
from llm.router.probe import Held, Node, PrefixProbe

ASK = "omniserve-prefixes"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"


def register(hooks: Any, kinds: Any) -> None:
    """Register the hooks (SGLang's HookRegistry and HookType)."""
    hooks.register(f"{_CACHE}.checkpoint_into_tree", _inserted, kinds.AFTER)
    hooks.register(f"{_CACHE}.reset", _reset, kinds.AFTER)
    hooks.register(
        "sglang.srt.managers.scheduler.Scheduler.get_internal_state", _asked, kinds.AROUND
    )


class SglangTree:
    """`probe.Tree` over SGLang's tree core; KV that is held in host memory counts as held."""

    def __init__(self, core: Any, windowed: bool) -> None:
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

        self._core = core
        self._full, self._swa = ComponentType.FULL, ComponentType.SWA
        self._windowed = windowed
        # One round asks about many paths with the same first nodes.
        self._nodes: dict[int, Node] = {}

    def path(self, node: int) -> Sequence[Node] | None:
        try:
            (infos,) = self._core.collect_path_info([node])
        except KeyError:
            return None
        return [self._node(info) for info in infos] or None

    def _node(self, info: Any) -> Node:
        known = self._nodes.get(info.node_id)
        if known is None:
            core, node = self._core, info.node_id
            full = info.full_value_len is not None or core.component_has_host_value_only(
                node, self._full
            )
            swa = self._windowed and (
                core.get_component_device_value(node, self._swa) is not None
                or core.component_has_host_value_only(node, self._swa)
            )
            known = Node(node, info.path_start, info.path_end, full, swa)
            self._nodes[node] = known
        return known


def decode_states(document: Mapping[str, Any]) -> dict[str, Held]:
    """The states in an answer."""
    return {name: Held(tokens, tuple(stops)) for name, tokens, stops in document["prefixes"]}


def _probe(cache: Any) -> PrefixProbe:
    probe: PrefixProbe | None = getattr(cache, "prefix_probe", None)
    if probe is None:
        window = cache.sliding_window_size if cache.supports_swa() else 0
        probe = cache.prefix_probe = PrefixProbe(window or 0)
    return probe


def _inserted(result: Any, self: Any, req: Any, **_: Any) -> None:
    if not self.disable and req.last_node is not None:
        _probe(self).saw(req.rid, req.last_node)


def _reset(result: Any, self: Any) -> None:
    probe = getattr(self, "prefix_probe", None)
    if probe is not None:
        probe.cleared()


def _asked(original: Any, self: Any, recv_req: Any) -> Any:
    if recv_req.rid != ASK:
        return original(self, recv_req)
    from sglang.srt.managers.io_struct import GetInternalStateReqOutput

    load = sum(uncached_of(request) for request in self.waiting_queue)
    if self.chunked_req is not None:
        load += max(0, self.chunked_req.seqlen - self.chunked_req.prefix_len)
    states: dict[str, Held] = {}
    cache = self.tree_cache
    if getattr(cache, "prefix_probe", None) is not None:
        probe = _probe(cache)
        probe.refresh(SglangTree(cache.tree_core, cache.supports_swa()))
        states = probe.states()
    prefixes = [[name, held.tokens, list(held.stops)] for name, held in states.items()]
    running = len(self.running_batch.reqs) / max(1, self.max_running_requests)
    return GetInternalStateReqOutput(
        internal_state={"load": load, "running": running, "prefixes": prefixes}
    )
