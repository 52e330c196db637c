// What Python calls (llm/cpu/native.py).

#include "step.h"

using namespace omni;

namespace {

Scratch& scratch() {
  static thread_local Scratch own;
  return own;
}

}  // namespace

extern "C" {

// Sizes of the structs above, so that a caller with another layout is refused.
int64_t omni_layout() {
  const int64_t sizes[] = {sizeof(OmniLayer), sizeof(OmniDecoder), sizeof(OmniBatch),
                           sizeof(OmniDraft), sizeof(OmniStep)};
  int64_t layout = 0;
  for (int64_t size : sizes) layout = layout * 1000 + size;
  return layout;
}

void omni_forward(const OmniDecoder* model, const OmniBatch* batch) {
  run(*model, *batch, scratch());
}

// The batch's residual and out are scratch of [rows, hidden]; its rows are rows_each per request.
void omni_greedy_step(const OmniStep* step, const OmniBatch* batch) {
  Step{*step, *batch, scratch()}();
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
