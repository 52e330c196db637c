"""MTP steps of SGLang's multi-layer worker without its per-layer overhead, and without drafting
where it does not pay.

A step verifies either all drafted rows or only the last accepted one, through the same code: the
target decides every token, so greedy answers are the same and sampled ones have the same
distribution. Either way the draft layers then run over the verified rows, which keeps their KV and
the next drafts up to date.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from llm.cpu.mtp_greedy import GreedyStep
from llm.cpu.mtp_policy import MtpPolicy
from llm.cpu.seeds import repeats

if TYPE_CHECKING:
    from sglang.srt.speculative.eagle_info import EagleVerifyInput


@dataclass
class Meter:
    """Times decode steps from start to start, so that a step's share of the scheduler counts.

    ``adaptive``: without it every step drafts, and nothing is decided.
    """

    adaptive: bool
    clock: Callable[[], float] = time.perf_counter
    policy: MtpPolicy = field(default_factory=MtpPolicy)
    _last: tuple[float, int, bool, float] | None = None

    def start(self, batch: int, always: bool = False) -> bool:
        """Begin a step of ``batch`` requests; whether it drafts, as it does ``always``."""
        now = self.clock()
        if self._last is not None:
            began, size, drafted, tokens = self._last
            # When requests came or went, more than a step lies between the two.
            if size == batch:
                self.policy.observe(size, drafted, now - began, tokens)
        drafts = not self.adaptive or always or self.policy.decide(batch)
        self._last = (now, batch, drafts, 1.0)
        return drafts

    def finish(self, tokens: float) -> None:
        """The step gave ``tokens`` per request."""
        assert self._last is not None, "no step has begun"
        self._last = (*self._last[:3], tokens)

    def interrupt(self) -> None:
        """Something else runs before the next step."""
        self._last = None


def with_policy(forward_batch_generation: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``MultiLayerEagleWorkerV2.forward_batch_generation``: decide and measure each step."""

    def wrapped(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        meter = meter_of(self)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or not batch.reqs:
            meter.interrupt()
            return forward_batch_generation(self, batch, *args, **kwargs)
        worker = self.draft_worker
        # Which random number a token is drawn with depends on the rows that are verified.
        drafts = meter.start(len(batch.reqs), always=repeats(batch))
        worker.rows = worker.speculative_num_draft_tokens if drafts else 1
        if self.greedy_step is not None and batch.spec_info and GreedyStep.fits(batch):
            result = self.greedy_step.run(batch, worker.rows)
            if kwargs.get("on_publish") is not None:
                kwargs["on_publish"](result.new_seq_lens)
        else:
            result = forward_batch_generation(self, batch, *args, **kwargs)
        meter.finish(float(result.accept_lens.float().mean()))
        return result

    return wrapped


def meter_of(worker: Any) -> Meter:
    """The meter of a ``MultiLayerEagleWorkerV2``, made with its greedy step at first use.

    The model's configuration says ``"mtp_adaptive": false`` where every step is to draft.
    """
    if "meter" not in vars(worker):
        config = worker.target_worker.model_runner.model_config.hf_config
        runners = (worker.target_worker.model_runner, *worker.draft_worker.draft_runners)
        native = all(getattr(runner.model, "decoder", None) for runner in runners)
        native = native and not worker.draft_worker.use_rejection_sampling
        worker.greedy_step = GreedyStep(worker) if native else None
        worker.meter = Meter(native and getattr(config, "mtp_adaptive", True))
    meter: Meter = worker.meter
    return meter


def with_state(add_speculative: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``SchedulerInternalStateController._add_speculative``: the policy's state, as
    ``internal_states[0]["mtp"]`` of the engine's server info."""

    def wrapped(self: Any, state: dict[str, Any]) -> None:
        add_speculative(self, state)
        if not self.scheduler.spec_algorithm.is_none():
            meter = meter_of(self.scheduler.draft_worker)
            state["mtp"] = {"adaptive": meter.adaptive, "by_batch": meter.policy.state()}

    return wrapped


def draft(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``MultiLayerEagleDraftWorker.draft``: a chain's verify input in a few tensors.

    Multi-layer drafts were made in the step before; the original still plans a forward pass.
    """

    def wrapped(self: Any, batch: Any) -> EagleVerifyInput:
        if batch.forward_mode.is_idle():
            idle: EagleVerifyInput = original(self, batch)
            return idle
        from sglang.srt.speculative.eagle_info import EagleVerifyInput

        drafted, rows, size = batch.spec_info, self.rows, len(batch.seq_lens)
        last = drafted.bonus_tokens.long().unsqueeze(1)
        tokens = torch.cat((last, drafted.topk_index[:, : rows - 1].long()), 1)
        row = torch.arange(rows)
        positions = batch.seq_lens.long().unsqueeze(1) + row
        slots = self.req_to_token_pool.req_to_token[batch.req_pool_indices.unsqueeze(1), positions]
        following = torch.where(row < rows - 1, row + 1, -1)
        return EagleVerifyInput(
            draft_token=tokens.flatten(),
            custom_mask=torch.ones(rows, rows, dtype=torch.bool).tril().repeat(size, 1).flatten(),
            positions=positions.flatten(),
            retrieve_index=torch.arange(size * rows).view(size, rows),
            retrieve_next_token=following.repeat(size, 1),
            retrieve_next_sibling=torch.full((size, rows), -1),
            retrieve_cum_len=None,
            spec_steps=rows - 1,
            topk=1,
            draft_token_num=rows,
            capture_hidden_mode=None,
            seq_lens_sum=None,
            seq_lens_cpu=None,
            draft_probs=drafted.draft_probs,
            prepared_out_cache_loc=slots.flatten().long(),
        )

    return wrapped


def verify(self: Any, batch: Any, grammar_barrier: Any = None) -> Any:
    """``MultiLayerEagleWorkerV2.verify`` of as many rows as the verify input has."""
    from sglang.srt.speculative.eagle_worker_common import run_eagle_verify

    return run_eagle_verify(
        batch,
        target_worker=self.target_worker,
        req_to_token_pool=self.req_to_token_pool,
        token_to_kv_pool_allocator=self.token_to_kv_pool_allocator,
        plan_stream=self.plan_stream,
        plan_stream_ctx=self.plan_stream_ctx,
        topk=self.topk,
        num_draft_tokens=batch.spec_info.draft_token_num,
        device=self.device,
        metadata_ready_pre_pad=False,
        finalize_tree_path=False,
        grammar_barrier=grammar_barrier,
    )


def draft_extend(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``MultiLayerEagleDraftWorker._draft_extend_for_decode``.

    Runs the draft layers over the rows that were just verified, whose positions and slots the
    verify pass has worked out already.
    """

    def wrapped(self: Any, batch: Any, result: Any, **plans: Any) -> None:
        runners = [r for r in self.draft_runner_list if getattr(r.model, "decoder", None)]
        all_native = len(runners) == len(self.draft_runner_list)
        if batch.forward_mode.is_idle() or self.use_rejection_sampling or not all_native:
            return original(self, batch, result, **plans)
        (verified,) = result.extra_keep_alive_refs
        tokens: list[torch.Tensor] = []
        ids = result.next_token_ids.long().view(len(result.accept_lens), -1)
        end = result.accept_lens.long() - 1
        for runner in runners:
            model = runner.model
            if tokens:
                ids = shifted(ids, end, tokens[-1])
            hidden, _ = model.decoder.forward(
                ids.flatten(),
                result.logits_output.hidden_states,
                model.model.embed_tokens.weight,
                verified,
                runner.attn_backend,
            )
            last = hidden.view(*ids.shape, -1)[torch.arange(len(ids)), end]
            logits = F.linear(last, model.lm_head.weight[: model.config.vocab_size])
            tokens.append(logits.argmax(-1))
        following = result.next_draft_input
        following.topk_index = torch.stack(tokens, 1)
        # Scores order the branches of a tree; a chain has one.
        following.topk_p = torch.ones(following.topk_index.shape)
        following.hidden_states = following.draft_probs = None
        return None

    return wrapped


def shifted(ids: torch.Tensor, end: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Ids [B, n] one to the left, with ``tokens`` [B] at each request's row ``end`` [B]; the last
    column keeps its own."""
    moved = torch.cat((ids[:, 1:], ids[:, -1:]), 1)
    return moved.scatter_(1, end.unsqueeze(1), tokens.unsqueeze(1))
