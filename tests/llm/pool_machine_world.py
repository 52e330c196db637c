"""SGLang's own pools, allocator, prefix tree and requests on a CPU, without an engine.

The steps of a request call what SGLang's scheduler calls, in its order: match, lock, allocate
(evicting when short), checkpoint, decode or verify, release.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ScheduleBatch, release_req
from sglang.srt.mem_cache.allocation import alloc_for_decode, alloc_for_extend
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from llm.cpu.patches import Patch, apply
from llm.cpu.slots import assign_req_to_token
from tests.llm.pool_machine_checks import check_owners
from tests.llm.pool_machine_tags import Tags

DRAFTS = 4
ROWS = 3
CONFIGURED = {
    "attention_backend": "torch_native",
    "speculative_num_steps": DRAFTS - 1,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": DRAFTS,
}
NO_PENALTY = SimpleNamespace(penalizer_orchestrator=SimpleNamespace(is_required=False))


@contextmanager
def configured(*more: Patch) -> Iterator[None]:
    """SGLang's configuration of this process, the one patch that its slot tables need, and more."""
    apply([Patch("sglang.srt.mem_cache.allocation", "assign_req_to_token_pool_func",
                 assign_req_to_token), *more])  # fmt: skip
    with get_context().override_server_args(**CONFIGURED):
        yield


def ceil(count: int, page: int) -> int:
    return -(-count // page) * page


class World:
    """Pools of little more than five (full) and three windows, small enough that requests push each
    other out. ``drafting`` keys the tree by pairs, as with MTP, and verifies instead of decoding.
    """

    # SGLang's choice of prefix tree; None: its default.
    core: str | None = None

    def __init__(self, page: int, window: int, drafting: bool) -> None:
        self.page, self.window, self.drafting = page, window, drafting
        self.span = ceil(window, page)
        full, swa = self.sizes()
        self.longest = full - 4 * page - 2 * DRAFTS
        self.rows = ReqToTokenPool(ROWS, 2 * full, "cpu", False)
        self.kv = SWAKVPool(
            size=full, size_swa=swa, page_size=page, dtype=torch.float32, head_num=1, head_dim=2,
            v_head_dim=4, swa_attention_layer_ids=[1], full_attention_layer_ids=[0], device="cpu",
        )  # fmt: skip
        self.allocator = SWATokenToKVPoolAllocator(
            full, swa, page, torch.float32, "cpu", self.kv, need_sort=False
        )
        self.parameters = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=page,
            is_eagle=drafting,
            sliding_window_size=window,
            tree_components=(ComponentType.FULL, ComponentType.SWA),
            tree_core_backend=self.core,
        )
        self.tree = UnifiedRadixCache(self.parameters)
        self.tags = Tags(self.allocator, page)
        self.prefilling: list[Req] = []
        self.running: list[Req] = []
        self.waiting: list[Req] = []
        # Tokens of the last step, by request: a stop lies within them.
        self.fresh: dict[int, int] = {}
        self.counts: Counter[str] = Counter()
        self.last_hit = 0
        self._evict_for_alloc = self.tree.evict_for_alloc
        self.tree.evict_for_alloc = self.evict_for_alloc

    def sizes(self) -> tuple[int, int]:
        """Slots of the full and of the window pool."""
        return 5 * self.span + 8 * self.page, 3 * self.span + 4 * self.page

    # What requests look like.

    def slots(self, req: Req) -> np.ndarray:
        row: np.ndarray = self.rows.req_to_token[req.kv.req_pool_idx].numpy()
        return row.astype(np.int64)

    def tokens(self, req: Req) -> list[int]:
        return [*req.origin_input_ids, *req.output_ids]

    def batch(self, reqs: list[Req], mode: ForwardMode, lens: list[int]) -> ScheduleBatch:
        batch = ScheduleBatch(
            reqs=reqs,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.tree,
            model_config=SimpleNamespace(is_encoder_decoder=False),
            device="cpu",
        )
        batch.forward_mode = mode
        batch.spec_algorithm = (
            SpeculativeAlgorithm.EAGLE if self.drafting else SpeculativeAlgorithm.NONE
        )
        batch.sampling_info = NO_PENALTY
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor(lens, dtype=torch.int64)
        if mode.is_decode():
            rows = torch.tensor([req.kv.req_pool_idx for req in reqs])
            batch.req_pool_indices = batch.req_pool_indices_cpu = rows
        return batch

    def room(self, count: int) -> bool:
        """Whether both pools hold ``count`` more slots once what is evictable is evicted."""
        full = self.allocator.full_available_size() + self.tree.full_evictable_size()
        swa = self.allocator.swa_available_size() + self.tree.swa_evictable_size()
        return bool(count <= min(full, swa))

    # What happens to them.

    def arrive(self, prompt: list[int]) -> None:
        self.waiting.append(Req("r", "", array("q", prompt), SamplingParams()))

    def lookup(self, tokens: Sequence[int]) -> int:
        """Match without keeping it; returns the number of tokens found."""
        found = self.tree.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens), None)))
        slots = np.asarray(self.tree.path_device_indices(found.last_device_node))
        slots = slots[: found.device_prefix_len]
        self.tags.expect(slots, tokens, self.window, "a hit")
        return len(slots)

    def match(self, req: Req) -> None:
        req.init_next_round_input(self.tree)

    def admit(self, req: Req, chunk: int) -> bool:
        """Match and lock a waiting request and compute its first chunk, if there is room."""
        if not self.rows.available_size():
            return False
        self.match(req)
        lock = self.tree.lock(req.last_node)
        tokens = self.tokens(req)
        hit = np.asarray(self.tree.prefix_device_indices(req))
        assert len(hit) % self.page == 0
        assert len(hit) < len(tokens), "a hit leaves nothing to compute"
        self.tags.expect(hit, tokens, self.window, "a hit")
        req.lock = lock
        if not self.extend(req, chunk):
            self.tree.unlock(lock)
            req.lock = None
            return False
        self.counts["hit"] += len(hit) > 0
        self.last_hit = len(hit)
        self.waiting.remove(req)
        return True

    def extend(self, req: Req, chunk: int) -> bool:
        """Compute up to ``chunk`` more prompt tokens (a chunk ends on a page) and checkpoint."""
        req.refresh_fill_ids()
        tokens = self.tokens(req)
        start = req.prefix_len
        end = min(len(tokens), start + chunk)
        if end < len(tokens):
            end = end // self.page * self.page
        if end <= start or not self.room(ceil(end - start, self.page) + self.page):
            self.counts["refused"] += 1
            return False
        req.extend_end = end
        batch = self.batch([req], ForwardMode.EXTEND, [end])
        batch.prefix_lens, batch.extend_lens = [start], [end - start]
        batch.extend_num_tokens = end - start
        alloc_for_extend(batch)
        req.extend_batch_idx += 1
        self.tags.compute(self.slots(req), tokens, start, end, self.window)
        if req in self.prefilling:
            self.prefilling.remove(req)
        if end == len(tokens):
            req.output_ids.append(1)
            self.fresh[id(req)] = 1
            self.running.append(req)
        else:
            self.prefilling.append(req)
            self.counts["part of a prompt"] += 1
        checkpoint_kv_cache(req, self.tree)
        return True

    def decode(self, reqs: list[Req], following: int) -> bool:
        """One token for each of ``reqs``."""
        if not self.room(len(reqs) * self.page):
            return False
        before = [req.kv.kv_committed_len for req in reqs]
        alloc_for_decode(self.batch(reqs, ForwardMode.DECODE, before), 1)
        for req, start in zip(reqs, before, strict=True):
            req.decode_batch_idx += 1
            self.tags.compute(self.slots(req), self.tokens(req), start, start + 1, self.window)
            req.output_ids.append(following)
            self.fresh[id(req)] = 1
        self.counts["decoded"] += 1
        return True

    def verify(self, reqs: list[Req], accepted: int, drafts: list[int]) -> bool:
        """A speculative step: the last token and three drafts are computed, ``accepted`` of the
        four stay; the slots of the rest are written again by the next step."""
        from sglang.srt.speculative.eagle_utils import eagle_prepare_for_decode

        if not self.room(len(reqs) * (ceil(2 * DRAFTS, self.page) + 2 * self.page)):
            return False
        before = [req.kv.kv_committed_len for req in reqs]
        eagle_prepare_for_decode(self.batch(reqs, ForwardMode.DECODE, before))
        for req, start in zip(reqs, before, strict=True):
            tokens = [*self.tokens(req), *drafts[:-1]]
            self.tags.compute(self.slots(req), tokens, start, start + DRAFTS, self.window)
            # The target's own token follows the accepted drafts: never the rejected one.
            req.output_ids.extend([*drafts[: accepted - 1], 3 - drafts[accepted - 1]])
            req.kv.kv_committed_len += accepted
            self.fresh[id(req)] = accepted
        self.counts["verified"] += 1
        return True

    def finish(self, req: Req, beyond_stop: int) -> None:
        """Insert everything up to the stop; a verify step may have gone ``beyond_stop``."""
        self.running.remove(req)
        req.finished_reason = FINISH_LENGTH(len(req.output_ids))
        beyond_stop = min(beyond_stop, self.fresh[id(req)] - 1)
        if beyond_stop:
            req.finished_len = len(req.output_ids) - beyond_stop
        kept = self.tokens(req)[: req.owned_kv_len()]
        release_kv_cache(req, self.tree, checkpoint=True)
        self.counts["finished"] += 1
        keyed = len(kept) - int(self.drafting)
        assert self.lookup(kept) >= keyed // self.page * self.page, "an insert is not found"

    def abort(self, req: Req) -> None:
        (self.prefilling if req in self.prefilling else self.running).remove(req)
        release_kv_cache(req, self.tree, checkpoint=False)
        self.counts["aborted"] += 1

    def retract(self, req: Req) -> None:
        """Take a running request's memory; it waits and starts again from its tokens."""
        self.running.remove(req)
        release_req(
            req=req,
            remaing_req_count=0,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            tree_cache=self.tree,
            hisparse_coordinator=None,
        )
        self.counts["retracted"] += 1
        self.waiting.append(req)

    def evict_for_alloc(self, params: EvictParams, **options: Any) -> Any:
        evicted = self._evict_for_alloc(params, **options)
        self.counts["full pressed out"] += evicted.num_tokens_evicted
        self.counts["window pressed out"] += evicted.swa_num_tokens_evicted
        return evicted

    def evict(self, full: int, swa: int) -> None:
        """Push cached slots out for no request's sake."""
        self.tree.evict(EvictParams(num_tokens=full, swa_num_tokens=swa))

    # What must hold.

    def check(self) -> None:
        """Owners, counts, and that every request still has what it will attend to."""
        live = [*self.prefilling, *self.running]
        rows = [(req.kv, self.slots(req)) for req in live]
        check_owners(self.tags, self.tree, rows)
        for req, (kv, slots) in zip(live, rows, strict=True):
            done = slots[: kv.kv_committed_len]
            self.tags.expect(done, self.tokens(req), self.window, "a request")

    def sound(self) -> None:
        """What must hold between any two steps."""
        self.check()

    def settings(self) -> AbstractContextManager[Any]:
        """SGLang's settings that the world is worked in with."""
        return nullcontext()

    def shut(self) -> None:
        """Give back what outlives the world."""

    def close(self) -> None:
        """Without requests the tree is sound and gives every slot back."""
        for req in [*self.prefilling, *self.running]:
            self.abort(req)
        self.check()
        self.tree.sanity_check()
        self.counts["closed"] += 1
        self.evict(self.allocator.size_full, self.allocator.size_swa)
        assert self.allocator.full_available_size() == self.allocator.size_full
        assert self.allocator.swa_available_size() == self.allocator.size_swa
