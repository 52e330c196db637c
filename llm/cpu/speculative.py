"""Chain drafting and verification that SGLang does in device kernels, vectorised over requests.

MTP drafts one chain per request (top-k 1), so SGLang's draft "tree" is a line: node i follows
node i - 1. B requests, n = drafted tokens + 1 rows each, vocabulary V. Row 0 of ``candidates``
is the last accepted token; row j >= 1 is draft j, judged by the target's row j - 1.
"""

from __future__ import annotations

from typing import Any

import torch


def rotate_input_ids(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> torch.Tensor:
    """Shift each request's ids one to the left, in place, and put its new token at its last
    row, or at flat row ``select_index`` [B] where given (the last row then keeps its id)."""
    nonempty = extend_seq_lens > 0
    last = (extend_start_loc + extend_seq_lens - 1)[nonempty].long()
    if len(last) == 0:
        return input_ids
    used = input_ids[: int(last.max()) + 1]
    kept = used[last]
    used[:-1] = used[1:].clone()
    used[last] = kept
    target = last if select_index is None else select_index[nonempty].long()
    input_ids[target] = topk_index.reshape(len(extend_seq_lens), -1)[nonempty, 0].to(
        input_ids.dtype
    )
    return input_ids


def build_chain(
    parent_list: torch.Tensor,
    top_scores_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    spec_steps: int,
    num_verify_tokens: int,
    tree_mask_mode: Any,
) -> None:
    """Fill the tree tables of a chain, in place. ``tree_mask`` is [B, n, n], flat."""
    if topk != 1 or num_verify_tokens != spec_steps + 1:
        raise NotImplementedError("the CPU platform drafts one chain per request (top-k 1)")
    batch, n = len(seq_lens), num_verify_tokens
    row = torch.arange(n)
    tree_mask.view(batch, n, n)[:] = torch.ones(n, n, dtype=torch.bool).tril()
    positions.view(batch, n)[:] = seq_lens.long().unsqueeze(1) + row
    retrieve_index[:] = torch.arange(batch * n).view(batch, n)
    retrieve_next_token[:] = torch.where(row < n - 1, row + 1, -1)
    retrieve_next_sibling.fill_(-1)


def verify_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    topk: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Accept drafts while each equals the target's argmax of the row before.

    Writes ``predicts`` [B * n] (meaningless past the accepted rows), ``accept_index`` [B, n] (flat
    rows, -1 past the end) and ``accept_token_num`` [B] (accepted drafts) in place and returns them.
    """
    matches = candidates[:, 1:] == target_predict[:, :-1]
    _commit(predicts, accept_index, accept_token_num, retrieve_index, matches, target_predict)
    return predicts, accept_index, accept_token_num


def verify_sampling(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Speculative sampling with the draft as a point mass, in place.

    Draft j is accepted with its target probability; after a rejection the next token is drawn
    from the target with the rejected token removed, which leaves the output distribution that
    of the target (thresholds 1.0). ``target_probs`` [B, n, V], coins [B, n] and [B].
    """
    drafts = candidates[:, 1:].long()
    p = target_probs[:, :-1].gather(2, drafts.unsqueeze(2)).squeeze(2)
    matches = (uniform_samples[:, : drafts.shape[1]] < p / threshold_acc) | (p >= threshold_single)
    accepted = _accepted(matches)
    residual = _row(target_probs, accepted)
    if drafts.shape[1]:
        rejected = accepted < drafts.shape[1]
        refused = drafts.gather(1, accepted.clamp(max=drafts.shape[1] - 1).unsqueeze(1))
        residual = torch.where(rejected.unsqueeze(1), residual.scatter(1, refused, 0.0), residual)
    _commit_sampled(
        predicts,
        accept_index,
        accept_token_num,
        retrive_index,
        drafts,
        matches,
        residual,
        uniform_samples_for_final_sampling,
    )


def verify_rejection(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
    *,
    block_verification: bool = False,
) -> None:
    """Speculative sampling with drafts drawn from ``draft_probs`` [B, n - 1 or more, V].

    Draft j is accepted when coin * q < p; after a rejection the next token is drawn from
    max(p - q, 0) (Leviathan et al. 2023, section 2.3).
    """
    if block_verification:
        raise NotImplementedError("block verification is not available on the CPU platform")
    drafts = candidates[:, 1:].long()
    steps = drafts.shape[1]
    p = target_probs[:, :-1].gather(2, drafts.unsqueeze(2)).squeeze(2)
    q = draft_probs[:, :steps].gather(2, drafts.unsqueeze(2)).squeeze(2)
    matches = uniform_samples[:, :steps] * q < p
    accepted = _accepted(matches)
    residual = _row(target_probs, accepted)
    proposed = _row(draft_probs, accepted.clamp(max=steps - 1))
    rejected = (accepted < steps).unsqueeze(1)
    residual = torch.where(rejected, (residual - proposed).clamp(min=0), residual)
    _commit_sampled(
        predicts,
        accept_index,
        accept_token_num,
        retrive_index,
        drafts,
        matches,
        residual,
        uniform_samples_for_final_sampling,
    )


def fill_bonus_tokens(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
    batch_size: int,
) -> None:
    """The last accepted token of each request (``accept_lens`` counts it), in place."""
    at = torch.arange(batch_size) * accept_stride + accept_lens[:batch_size].long() - 1
    bonus_tokens[:batch_size] = accept_tokens.reshape(-1)[at].to(bonus_tokens.dtype)


def _accepted(matches: torch.Tensor) -> torch.Tensor:
    """Length of each row's leading run of True; int64 [B]."""
    return matches.long().cumprod(1).sum(1)


def _row(probs: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """[B, n, V] and int64 [B] -> [B, V]."""
    return probs[torch.arange(len(index)), index]


def _commit_sampled(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    retrieve_index: torch.Tensor,
    drafts: torch.Tensor,
    matches: torch.Tensor,
    residual: torch.Tensor,
    coins: torch.Tensor,
) -> None:
    cumulative = residual.cumsum(1)
    threshold = coins.reshape(-1, 1) * cumulative[:, -1:]
    final = (cumulative > threshold).long().argmax(1)
    # Row j's token: the accepted draft j + 1, or the drawn token at the end of the run.
    tokens = torch.cat((drafts, final.unsqueeze(1)), 1)
    tokens = tokens.scatter(1, _accepted(matches).unsqueeze(1), final.unsqueeze(1))
    _commit(predicts, accept_index, accept_token_num, retrieve_index, matches, tokens)


def _commit(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    retrieve_index: torch.Tensor,
    matches: torch.Tensor,
    tokens: torch.Tensor,
) -> None:
    accepted = _accepted(matches)
    taken = torch.arange(tokens.shape[1]) <= accepted.unsqueeze(1)
    accept_index[:] = torch.where(taken, retrieve_index, -1).to(accept_index.dtype)
    accept_token_num[:] = accepted.to(accept_token_num.dtype)
    # A chain's rows lie in order; those past the accepted ones are not read.
    predicts.view(tokens.shape).copy_(tokens)
