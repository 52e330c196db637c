"""A whole decode step with MTP in one call of the kernel, for batches that only want tokens.

Verifying, accepting and drafting are a dozen small tensor operations each on SGLang's general
path, more work than the model itself in a small batch. Greedy requests without logprobs, grammar,
penalties or biases need none of their results but the tokens.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any

import torch

from llm.cpu.decoder import is_narrow
from llm.cpu.native import Batch, Draft, Step, pack


class GreedyStep:
    """The step of a ``MultiLayerEagleWorkerV2`` whose models all run on the kernel."""

    def __init__(self, worker: Any) -> None:
        target = worker.target_worker.model_runner
        model = target.model
        vocabulary = model.config.vocab_size
        embeddings = model.model.embed_tokens.weight.detach()
        head = model.lm_head.weight.detach()[:vocabulary]
        narrow_head = is_narrow(head)
        self._decoder = model.decoder
        self._backend = target.attn_backend
        self._runners = worker.draft_worker.draft_runner_list
        self._kept = [embeddings, pack(head.bfloat16() if narrow_head else head)]
        self._drafts = (Draft * len(self._runners))()
        self._step = Step(
            target=self._decoder.model_pointer,
            drafts=self._drafts,
            embeddings=embeddings.data_ptr(),
            head=self._kept[1].data_ptr(),
            draft_count=len(self._runners),
            vocabulary=vocabulary,
            narrow_embeddings=int(embeddings.dtype == torch.bfloat16),
            narrow_head=int(narrow_head),
        )

    @staticmethod
    def fits(batch: Any) -> bool:
        """Whether tokens are all that the batch's requests want, and greedy ones."""
        info = batch.sampling_info
        return bool(
            info.is_all_greedy
            and info.acc_additive_penalties is None
            and info.acc_scaling_penalties is None
            and info.logit_bias is None
            and not info.has_custom_logit_processor
            and not info.has_watermark_candidates
            and not batch.has_grammar
            and not batch.return_logprob
            and not batch.return_hidden_states
        )

    def run(self, batch: Any, rows: int) -> Any:
        """SGLang's result of a decode step that verifies ``rows`` rows of each request."""
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput
        from sglang.srt.managers.utils import GenerationBatchResult
        from sglang.srt.speculative.eagle_info import EagleDraftInput

        self._bind()
        size, count = len(batch.seq_lens), len(self._runners)
        pools = batch.req_pool_indices.long()
        start = batch.seq_lens.long()
        positions = start.unsqueeze(1) + torch.arange(rows)
        table = self._backend.req_to_token
        slots = table[pools.unsqueeze(1), positions].long()
        last = batch.spec_info.bonus_tokens.long()
        drafted = batch.spec_info.topk_index.long().contiguous()
        predicted = torch.empty(size, rows, dtype=torch.int64)
        accepted = torch.empty(size, dtype=torch.int64)
        following = torch.empty(size, count, dtype=torch.int64)
        scratch = torch.empty(2, size * rows, self._decoder.hidden)
        step = self._step
        step.last, step.drafted = last.data_ptr(), drafted.data_ptr()
        step.predicted, step.accepted = predicted.data_ptr(), accepted.data_ptr()
        step.next = following.data_ptr()
        native = Batch(
            positions=positions.data_ptr(),
            slots=slots.data_ptr(),
            pools=pools.data_ptr(),
            prefix=start.data_ptr(),
            request_slots=table.data_ptr(),
            to_window=self._backend.to_window(),
            residual=scratch[0].data_ptr(),
            out=scratch[1].data_ptr(),
            rows=size * rows,
            requests=size,
            rows_each=rows,
            request_stride=table.stride(0),
        )
        self._decoder.kernel.greedy_step(byref(step), byref(native))

        accept_lens = accepted.int()
        row = torch.arange(size * rows).view(size, rows)
        taken = torch.arange(rows) < accepted.unsqueeze(1)
        return GenerationBatchResult(
            logits_output=LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=predicted.flatten().int(),
            speculative_num_draft_tokens=rows,
            next_draft_input=EagleDraftInput(
                bonus_tokens=predicted.gather(1, accepted.unsqueeze(1) - 1).flatten().int(),
                # Scores order the branches of a tree; a chain has one.
                topk_p=torch.ones(size, count),
                topk_index=following,
            ),
            accept_lens=accept_lens,
            accept_index=torch.where(taken, row, -1).int(),
            new_seq_lens=batch.seq_lens + accept_lens,
        )

    def _bind(self) -> None:
        """Point every layer at its pool, and the drafts at theirs."""
        self._decoder.bind(self._backend.pool)
        for entry, runner in zip(self._drafts, self._runners, strict=True):
            backend, draft = runner.attn_backend, runner.model.decoder
            draft.decoder.bind(backend.pool)
            if entry.projection is None:
                draft.fill(entry)
            entry.to_window = backend.to_window()
