"""Worlds with one step done wrong, each of which the checks must find, and by which message."""

from __future__ import annotations

from array import array

import torch
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.common import free_swa_out_of_window_slots

from tests.llm.pool_machine_world import World


class WindowFreedEarly(World):
    """Decoding keeps a page less of the window than the next token reads."""

    def __init__(self, page: int, window: int, drafting: bool) -> None:
        super().__init__(page, window, drafting)
        self.tree.evict_sliding_windows = self.free_early

    def free_early(self, req: Req, pre_len: int, *, eviction_interval: int = 1) -> None:
        free_swa_out_of_window_slots(
            req,
            pre_len,
            sliding_window_size=self.window - self.page,
            page_size=self.page,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
        )


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
    """A request is matched by the prompt of the request before it, cut or filled to its length."""

    before: tuple[int, ...] = ()

    def match(self, req: Req) -> None:
        own = req.origin_input_ids
        other = self.before[: len(own)]
        req.origin_input_ids = array("q", [*other, *own[len(other) :]])
        req.full_untruncated_fill_ids = array("q")
        super().match(req)
        req.origin_input_ids = own
        req.full_untruncated_fill_ids = array("q")
        self.before = tuple(own)


class RejectedKept(World):
    """A speculative step keeps one token more than was accepted."""

    def verify(self, reqs: list[Req], accepted: int, drafts: list[int]) -> bool:
        done = super().verify(reqs, accepted, drafts)
        if done:
            for req in reqs:
                req.kv.kv_committed_len += 1
        return done


FAULTS = [
    (WindowFreedEarly, "a step's input: the window is not complete"),
    (FreedTwice, "full pool: pages .* have two owners"),
    (FreedWhileCached, "window pool: pages .* have two owners"),
    (SlotLost, "window pool: pages are lost"),
    (AnotherPrompt, "a hit: full slots of other tokens"),
    (RejectedKept, "a request: full slots of other tokens"),
]
