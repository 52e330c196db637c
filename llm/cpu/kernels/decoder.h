// A MiMo-V2 decoder over SGLang's KV pools in one call: norms, fused projections, rotary
// embedding, KV writes, attention, router, experts. llm/cpu/native.py mirrors the structs.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "threads.h"

extern "C" {

struct OmniLayer {
  const float *attention_norm, *ffn_norm, *sinks, *cos_sin, *router, *router_bias;
  const void *qkv, *o, *gate_up, *down;  // packed; gate_up and down once per expert
  void *keys, *values;                   // the layer's buffers in the pool
  int64_t heads, kv_heads, key_width, value_width, rotary, window;  // window -1: full attention
  int64_t experts, top_k, inner, renormalize;                       // experts 0: dense
  float scale, value_scale, routed_scale, unused;
};

struct OmniDecoder {
  const OmniLayer* layers;
  const float* final_norm;
  int64_t layer_count, hidden, narrow_weights, narrow_cache;  // 1 = bfloat16
  float epsilon, unused;
};

struct OmniBatch {
  const int64_t *positions, *slots;            // per row; slots of the full pool
  const int64_t *pools, *prefix, *row_counts;  // per request; row_counts null: rows_each
  const int32_t* request_slots;                // [requests of the pool, request_stride]
  const int64_t* to_window;                    // full -> window slot; null: one pool
  float *residual, *out;                       // [rows, hidden]; embeddings in, pre-norm out
  int64_t rows, requests, rows_each, prefix_offset, request_stride;
};

}  // extern "C"

namespace omni {

inline int64_t count_of(const OmniBatch& batch, int64_t request) {
  return batch.row_counts ? batch.row_counts[request] : batch.rows_each;
}

struct Scratch {
  std::vector<float> normed, qkv, attended, inner, scores, share;
  std::vector<float> expert_in, expert_out;
  std::vector<float> embedded, both, drafted, ends, logits;
  std::vector<int32_t> chosen, order, begin;
  std::unique_ptr<AttentionScratch> attention{new AttentionScratch};
};

inline float* sized(std::vector<float>& v, int64_t n) {
  if (int64_t(v.size()) < n) v.resize(n);
  return v.data();
}

inline void rms_norm(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  typedef Simd<kLanes>::F F;
  F squares{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F v = load<F>(x + i);
    squares += v * v;
  }
  float sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += squares[l];
  for (int64_t j = i; j < n; ++j) sum += x[j] * x[j];
  const float scale = 1.0f / std::sqrt(sum / float(n) + epsilon);
  for (int64_t j = 0; j < n; ++j) out[j] = x[j] * scale * weight[j];
}

inline void rotate(float* head, const float* cos_sin, int64_t rotary) {
  const int64_t half = rotary / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half], c = cos_sin[i], s = cos_sin[i + half];
    head[i] = a * c - b * s;
    head[i + half] = b * c + a * s;
  }
}

template <class W, class Kv>
struct Run {
  const OmniDecoder& model;
  const OmniBatch& batch;
  Scratch& s;
  Barrier* others;  // that have rows of the same requests; or null

  void attention(const OmniLayer& l) {
    const int64_t hidden = model.hidden, rows = batch.rows;
    const int64_t q_width = l.heads * l.key_width, k_width = l.kv_heads * l.key_width;
    const int64_t v_width = l.kv_heads * l.value_width, width = q_width + k_width + v_width;
    const int64_t o_width = l.heads * l.value_width;
    float* qkv = sized(s.qkv, rows * width);
    float* out = sized(s.attended, rows * o_width);
    const bool windowed = l.window >= 0 && batch.to_window;

    linear<false>(s.normed.data(), rows, hidden, static_cast<const W*>(l.qkv), width, hidden, qkv,
                  width);
    Kv* keys = static_cast<Kv*>(l.keys);
    Kv* values = static_cast<Kv*>(l.values);
    for (int64_t t = 0; t < rows; ++t) {
      float* row = qkv + t * width;
      const float* angles = l.cos_sin + batch.positions[t] * l.rotary;
      for (int64_t h = 0; h < l.heads + l.kv_heads; ++h)
        rotate(row + h * l.key_width, angles, l.rotary);
      const int64_t slot = windowed ? batch.to_window[batch.slots[t]] : batch.slots[t];
      for (int64_t i = 0; i < k_width; ++i) narrow(row[q_width + i], keys + slot * k_width + i);
      const float* v = row + q_width + k_width;
      for (int64_t i = 0; i < v_width; ++i)
        narrow(v[i] * l.value_scale, values + slot * v_width + i);
    }
    if (others) others->wait();
    const Heads heads{int(l.heads),       int(l.kv_heads), int(l.key_width),
                      int(l.value_width), int(l.window),   l.scale,
                      l.sinks};
    const Buffers<Kv> pool{keys, values};
    const auto of = [&](int64_t r) {
      const Slots slots{batch.request_slots + batch.pools[r] * batch.request_stride,
                        windowed ? batch.to_window : nullptr};
      return Rows{slots, batch.prefix[r] + batch.prefix_offset, count_of(batch, r)};
    };
    int64_t at = 0;
    for (int64_t r = 0; r < batch.requests; ++r) {
      const Rows own = of(r), next = of(std::min(r + 1, batch.requests - 1));
      attend<Kv>(heads, own, qkv + at * width, width, pool, out + at * o_width, o_width,
                 r + 1 < batch.requests ? &next : nullptr, *s.attention);
      at += own.rows;
    }
    linear<true>(out, rows, o_width, static_cast<const W*>(l.o), hidden, o_width, batch.residual,
                 hidden);
  }

  void dense(const OmniLayer& l) {
    const int64_t rows = batch.rows, width = (l.inner + 15) / 16 * 16;
    float* inner = sized(s.inner, rows * width);
    gated(s.normed.data(), rows, model.hidden, static_cast<const W*>(l.gate_up), l.inner,
          model.hidden, inner);
    linear<true>(inner, rows, width, static_cast<const W*>(l.down), model.hidden, l.inner,
                 batch.residual, model.hidden);
  }

  // Fills s.chosen [rows, top_k], by expert number, and s.share with their weights.
  void route(const OmniLayer& l) {
    const int64_t rows = batch.rows, n = l.experts, k = l.top_k;
    float* logits = sized(s.scores, rows * n);
    linear<false>(s.normed.data(), rows, model.hidden, l.router, n, model.hidden, logits, n);
    s.chosen.resize(rows * k);
    s.share.resize(rows * k);
    for (int64_t t = 0; t < rows; ++t) {
      float* score = logits + t * n;
      int32_t* chosen = s.chosen.data() + t * k;
      for (int64_t e = 0; e < n; ++e) score[e] = 1.0f / (1.0f + std::exp(-score[e]));
      for (int64_t i = 0; i < k; ++i) {
        int32_t best = -1;
        float highest = 0;
        for (int64_t e = 0; e < n; ++e) {
          const float value = score[e] + (l.router_bias ? l.router_bias[e] : 0.0f);
          if (std::find(chosen, chosen + i, int32_t(e)) != chosen + i) continue;
          if (best < 0 || value > highest) best = int32_t(e), highest = value;
        }
        chosen[i] = best;
      }
      std::sort(chosen, chosen + k);
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += score[chosen[i]];
      const float scale = (l.renormalize ? 1.0f / (sum + 1e-20f) : 1.0f) * l.routed_scale;
      for (int64_t i = 0; i < k; ++i) s.share[t * k + i] = score[chosen[i]] * scale;
    }
  }

  void experts(const OmniLayer& l) {
    route(l);
    const int64_t hidden = model.hidden, k = l.top_k, pairs = batch.rows * k;
    const int64_t width = (l.inner + 15) / 16 * 16;
    s.begin.assign(l.experts + 1, 0);
    for (int64_t i = 0; i < pairs; ++i) ++s.begin[s.chosen[i] + 1];
    for (int64_t e = 0; e < l.experts; ++e) s.begin[e + 1] += s.begin[e];
    s.order.resize(pairs);
    std::vector<int32_t>& begin = s.begin;
    for (int64_t i = 0; i < pairs; ++i) s.order[begin[s.chosen[i]]++] = int32_t(i);
    // begin[e] is now the end of expert e.
    const int64_t gate_size = padded(2 * width) * hidden, down_size = padded(hidden) * l.inner;
    for (int64_t e = 0, first = 0; e < l.experts; ++e) {
      const int64_t n = begin[e] - first;
      if (n == 0) continue;
      float* in = sized(s.expert_in, n * hidden);
      float* inner = sized(s.inner, n * width);
      float* out = sized(s.expert_out, n * hidden);
      for (int64_t i = 0; i < n; ++i) {
        const float* from = s.normed.data() + s.order[first + i] / k * hidden;
        std::copy(from, from + hidden, in + i * hidden);
      }
      gated(in, n, hidden, static_cast<const W*>(l.gate_up) + e * gate_size, l.inner, hidden, inner);
      linear<false>(inner, n, width, static_cast<const W*>(l.down) + e * down_size, hidden, l.inner,
                    out, hidden);
      // Experts in ascending order: each row's sum has one order in any batch.
      for (int64_t i = 0; i < n; ++i) {
        const int64_t pair = s.order[first + i];
        const float share = s.share[pair];
        float* to = batch.residual + pair / k * hidden;
        for (int64_t j = 0; j < hidden; ++j) to[j] += share * out[i * hidden + j];
      }
      first = begin[e];
    }
  }

  void norm(const float* weight, float* out) {
    for (int64_t t = 0; t < batch.rows; ++t)
      rms_norm(batch.residual + t * model.hidden, weight, model.hidden, model.epsilon,
               out + t * model.hidden);
  }

  void operator()() {
    sized(s.normed, batch.rows * model.hidden);
    for (int64_t i = 0; i < model.layer_count; ++i) {
      const OmniLayer& l = model.layers[i];
      norm(l.attention_norm, s.normed.data());
      attention(l);
      norm(l.ffn_norm, s.normed.data());
      if (l.experts)
        experts(l);
      else
        dense(l);
    }
    norm(model.final_norm, batch.out);
  }
};

inline void run(const OmniDecoder& model, const OmniBatch& batch, Scratch& s,
                Barrier* others = nullptr) {
  if (model.narrow_weights) {
    if (model.narrow_cache)
      Run<bf16, bf16>{model, batch, s, others}();
    else
      Run<bf16, float>{model, batch, s, others}();
  } else if (model.narrow_cache) {
    Run<float, bf16>{model, batch, s, others}();
  } else {
    Run<float, float>{model, batch, s, others}();
  }
}

inline void linear(const float* x, int64_t rows, int64_t k, const void* w, int64_t n, bool narrow,
            float* out) {
  if (narrow)
    linear<false>(x, rows, k, static_cast<const bf16*>(w), n, k, out, n);
  else
    linear<false>(x, rows, k, static_cast<const float*>(w), n, k, out, n);
}

}  // namespace omni
