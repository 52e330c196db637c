// What Python calls (llm/cpu/native.py).

#include <atomic>

#include "parts.h"
#include "step.h"

using namespace omni;

namespace {

Scratch& scratch() {
  static thread_local Scratch own;
  return own;
}

std::atomic<int64_t> threads{1};

// ``work(part, others)`` for each part of a batch, with this thread's scratch.
template <class Work>
void share(const OmniDecoder& model, const OmniBatch& batch, bool whole, Work work) {
  const Parts cuts = cut(model, batch, threads, whole);
  const int n = int(cuts.parts.size());
  Barrier barrier(n);
  const auto one = [&](int i) { work(cuts.parts[i], cuts.through_requests ? &barrier : nullptr); };
  if (n > 1)
    Pool::own().run(n, cuts.through_requests, one);
  else
    one(0);
}

}  // namespace

extern "C" {

// Threads that later calls may use, the calling one included.
void omni_threads(int64_t count) { threads = count; }

// Sizes of the structs above, so that a caller with another layout is refused.
int64_t omni_layout() {
  const int64_t sizes[] = {sizeof(OmniLayer), sizeof(OmniDecoder), sizeof(OmniBatch),
                           sizeof(OmniDraft), sizeof(OmniStep)};
  int64_t layout = 0;
  for (int64_t size : sizes) layout = layout * 1000 + size;
  return layout;
}

void omni_forward(const OmniDecoder* model, const OmniBatch* batch) {
  if (threads == 1) return run(*model, *batch, scratch());
  share(*model, *batch, false, [&](const Part& part, Barrier* others) {
    run(*model, part.batch, scratch(), others);
  });
}

// The batch's residual and out are scratch of [rows, hidden]; its rows are rows_each per request.
void omni_greedy_step(const OmniStep* step, const OmniBatch* batch) {
  if (threads == 1) return Step{*step, *batch, scratch()}();
  share(*step->target, *batch, true, [&](const Part& part, Barrier*) {
    Step{part_of(*step, part.first_request, batch->rows_each), part.batch, scratch()}();
  });
}

// out [rows, n] = x [rows, k] times packed weights.
void omni_linear(const float* x, int64_t rows, int64_t k, const void* weights, int64_t n,
                 int64_t narrow_weights, float* out) {
  linear(x, rows, k, weights, n, narrow_weights, out);
}

// The input of a draft layer: out [rows, 2 * hidden] = [norm(embedding), norm(hidden state)].
void omni_draft_input(const float* embedding, const float* state, const float* embedding_norm,
                      const float* state_norm, int64_t rows, int64_t hidden, float epsilon,
                      float* out) {
  for (int64_t t = 0; t < rows; ++t) {
    rms_norm(embedding + t * hidden, embedding_norm, hidden, epsilon, out + 2 * t * hidden);
    rms_norm(state + t * hidden, state_norm, hidden, epsilon, out + (2 * t + 1) * hidden);
  }
}

}  // extern "C"
