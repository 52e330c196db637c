// A whole decode step with MTP for greedy requests: verify, accept, draft.
#pragma once

#include "decoder.h"

extern "C" {

struct OmniDraft {
  OmniDecoder decoder;  // one layer
  const float *embedding_norm, *state_norm;
  const void* projection;  // packed [hidden, 2 * hidden]
  const int64_t* to_window;  // of the draft's pool
  int64_t narrow_projection;
};

struct OmniStep {
  const OmniDecoder* target;
  const OmniDraft* drafts;
  const void *embeddings, *head;  // [vocabulary, hidden] and packed
  const int64_t *last, *drafted;  // [requests], [requests, draft_count]
  // [requests, rows_each], [requests] with the target's own token, [requests, draft_count]
  int64_t *predicted, *accepted, *next;
  int64_t draft_count, vocabulary, narrow_embeddings, narrow_head;
};

}  // extern "C"

namespace omni {

// The step of the requests from ``first`` on.
inline OmniStep part_of(OmniStep step, int64_t first, int64_t rows_each) {
  step.last += first;
  step.drafted += first * step.draft_count;
  step.predicted += first * rows_each;
  step.accepted += first;
  step.next += first * step.draft_count;
  return step;
}

// A decode step of greedy requests: verify the drafted rows, accept, draft anew.
struct Step {
  const OmniStep step;
  OmniBatch batch;
  Scratch& s;

  void embed(const std::vector<int64_t>& ids, float* out) {
    const int64_t hidden = step.target->hidden;
    for (size_t t = 0; t < ids.size(); ++t) {
      const int64_t from = std::min(std::max<int64_t>(ids[t], 0), step.vocabulary - 1) * hidden;
      for (int64_t i = 0; i < hidden; ++i)
        out[t * hidden + i] = step.narrow_embeddings
                                  ? widen(static_cast<const bf16*>(step.embeddings)[from + i])
                                  : static_cast<const float*>(step.embeddings)[from + i];
    }
  }

  // The likeliest token after each of ``rows`` hidden states [rows, hidden].
  void best_tokens(const float* hidden, int64_t rows, int64_t* tokens) {
    const int64_t n = step.vocabulary;
    float* logits = sized(s.logits, rows * n);
    linear(hidden, rows, step.target->hidden, step.head, n, step.narrow_head, logits);
    for (int64_t t = 0; t < rows; ++t, logits += n)
      tokens[t] = std::max_element(logits, logits + n) - logits;
  }

  void operator()() {
    const int64_t n = batch.rows_each, hidden = step.target->hidden;
    std::vector<int64_t> ids(batch.rows);
    for (int64_t r = 0; r < batch.requests; ++r)
      for (int64_t j = 0; j < n; ++j)
        ids[r * n + j] = j ? step.drafted[r * step.draft_count + j - 1] : step.last[r];
    embed(ids, batch.residual);
    run(*step.target, batch, s);
    best_tokens(batch.out, batch.rows, step.predicted);
    for (int64_t r = 0; r < batch.requests; ++r) {
      int64_t& accepted = step.accepted[r];
      for (accepted = 1; accepted < n; ++accepted)
        if (ids[r * n + accepted] != step.predicted[r * n + accepted - 1]) break;
    }
    draft();
  }

  // Every draft layer sees the target's states; its ids move on by the drafts of those before.
  void draft() {
    const int64_t n = batch.rows_each, hidden = step.target->hidden;
    std::vector<int64_t> ids(step.predicted, step.predicted + batch.rows);
    const float* states = batch.out;
    float* embedded = sized(s.embedded, batch.rows * hidden);
    float* both = sized(s.both, 2 * batch.rows * hidden);
    float* ends = sized(s.ends, batch.requests * hidden);
    std::vector<int64_t> tokens(batch.requests);
    batch.out = sized(s.drafted, batch.rows * hidden);
    for (int64_t k = 0; k < step.draft_count; ++k) {
      const OmniDraft& d = step.drafts[k];
      batch.to_window = d.to_window;
      embed(ids, embedded);
      const float epsilon = d.decoder.epsilon;
      for (int64_t t = 0; t < batch.rows; ++t) {
        rms_norm(embedded + t * hidden, d.embedding_norm, hidden, epsilon, both + 2 * t * hidden);
        rms_norm(states + t * hidden, d.state_norm, hidden, epsilon, both + (2 * t + 1) * hidden);
      }
      linear(both, batch.rows, 2 * hidden, d.projection, hidden, d.narrow_projection,
             batch.residual);
      run(d.decoder, batch, s);
      for (int64_t r = 0; r < batch.requests; ++r) {
        const float* from = batch.out + (r * n + step.accepted[r] - 1) * hidden;
        std::copy(from, from + hidden, ends + r * hidden);
      }
      best_tokens(ends, batch.requests, tokens.data());
      for (int64_t r = 0; r < batch.requests; ++r) {
        step.next[r * step.draft_count + k] = tokens[r];
        for (int64_t j = 0; j + 1 < n; ++j) ids[r * n + j] = ids[r * n + j + 1];
        ids[r * n + step.accepted[r] - 1] = tokens[r];
      }
    }
  }
};

}  // namespace omni
