"""Worlds with one step done wrong, each of which the checks must find, and by which message."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from tests.llm.pool_machine_world import World


class WindowFreedEarly(World):
    """A page more than has left the window is freed, and recorded as freed."""

    def free_early(self, reqs: Sequence[Req]) -> None:
        for req in reqs:
            kv = req.kv
            start = max(kv.get_evicted_seqlen(ComponentType.SWA), kv.cache_protected_len)
            end = start + self.page
            if end <= kv.kv_committed_len:
                row = self.rows.req_to_token[kv.req_pool_idx, start:end]
                self.allocator.free_swa_segment(row, start_pos=start)
                kv.set_evicted_seqlen(ComponentType.SWA, end)

    def decode(self, reqs: list[Req], following: int) -> bool:
        done = super().decode(reqs, following)
        self.free_early(reqs)
        return done


class FreedTwice(World):
    """An aborted request's last page is freed a second time."""

    def abort(self, req: Req) -> None:
        last = int(self.slots(req)[req.kv.kv_allocated_len - 1])
        owned = req.kv.cache_protected_len < req.kv.kv_allocated_len
        super().abort(req)
        if owned:
            self.allocator.full_attn_allocator.free(torch.tensor([last]))


class FreedWhileCached(World):
    """Finishing a request also frees a window page that the tree has."""

    def finish(self, req: Req, beyond_stop: int) -> None:
        super().finish(req, beyond_stop)
        behind = self.tags.window_slots(self.tree.all_values_flatten().numpy())
        if (behind > 0).any():
            self.allocator.swa_attn_allocator.free(torch.tensor([int(behind.max())]))


class SlotLost(World):
    """Eviction takes a window page that nobody gives back."""

    def evict(self, full: int, swa: int) -> None:
        super().evict(full, swa)
        self.allocator.swa_attn_allocator.alloc(self.page)


class AnotherPrompt(World):
    """A request is matched by another first token than its own."""

    def match(self, req: Req) -> None:
        own = req.origin_input_ids
        req.origin_input_ids = array("q", [3 - own[0], *own[1:]])
        req.full_untruncated_fill_ids = array("q")
        super().match(req)
        req.origin_input_ids = own
        req.full_untruncated_fill_ids = array("q")


class RejectedKept(World):
    """A speculative step keeps one token more than was accepted."""

    def verify(self, reqs: list[Req], accepted: int, drafts: list[int]) -> bool:
        done = super().verify(reqs, accepted, drafts)
        if done:
            for req in reqs:
                req.kv.kv_committed_len += 1
        return done


FAULTS = [
    (WindowFreedEarly, "a request: the window is not complete"),
    (FreedTwice, "full pool: pages .* have two owners"),
    (FreedWhileCached, "window pool: pages .* have two owners"),
    (SlotLost, "window pool: pages are lost"),
    (AnotherPrompt, "a hit: full slots of other tokens"),
    (RejectedKept, "a request: full slots of other tokens"),
]
