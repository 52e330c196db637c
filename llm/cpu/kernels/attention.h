// Causal attention over paged keys and values, with windows and sinks, for any number of new rows.
//
// Query vectors (rows of a request times the heads that share a key head) are the lanes of a
// vector, keys are broadcast from the pool where they lie. Keys go in blocks that start at
// multiples of kKeys positions and each lane sees its own keys in order, so a row's result does
// not depend on the rows it is computed with.
#pragma once

#include <algorithm>

#include "simd.h"

namespace omni {

constexpr int kKeys = 64;       // keys per block
constexpr int kQueries = 64;    // query vectors per block
constexpr int kMaxWidth = 256;  // of keys and values
constexpr float kLowest = -1e30f;

struct Heads {
  int heads, kv_heads, key_width, value_width, window;
  float scale;
  const float* sinks;
};

// Where a request's positions lie in the pool of a layer.
struct Slots {
  const int32_t* full;
  const int64_t* to_window;  // null: the layer is in the full pool

  int64_t operator()(int64_t position) const {
    return to_window ? to_window[full[position]] : int64_t(full[position]);
  }
};

// Scratch of one call; too large for a stack frame.
struct AttentionScratch {
  alignas(64) float q[kMaxWidth * kQueries];       // [key width, lanes]
  alignas(64) float scores[kKeys * kQueries];      // [keys, lanes]
  alignas(64) float out[kMaxWidth * kQueries];     // [value width, lanes]
  alignas(64) float keys[kKeys * kMaxWidth];       // widened, for narrow pools
  alignas(64) float values[kKeys * kMaxWidth];
};

inline const float* widened(const float* row, int, float*) { return row; }

inline const float* widened(const bf16* row, int width, float* into) {
  for (int i = 0; i < width; ++i) into[i] = widen(row[i]);
  return into;
}

// Few rows read far more than they compute: have the lines of a row on their way early.
template <class Kv>
inline void prefetch(const Kv* row, int width) {
  const char* at = reinterpret_cast<const char*>(row);
  for (size_t byte = 0; byte < width * sizeof(Kv); byte += 64) __builtin_prefetch(at + byte);
}

// N lanes per vector, V vectors; R keys (or value columns) at a time.
template <int N, int V>
struct Block {
  typedef typename Simd<N>::F F;
  typedef typename Simd<N>::I I;
  static constexpr int kWide = N * V;
  static constexpr int kRows = V >= 4 ? (kLanes == 16 ? 6 : 2) : 8;

  template <int R>
  static void score(const float* const* keys, const float* q, int width, float* scores) {
    F sum[R][V] = {};
    for (int d = 0; d < width; ++d) {
      F x[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) x[v] = load<F>(q + d * kWide + v * N);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[r][v] += x[v] * keys[r][d];
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) store(scores + r * kWide + v * N, sum[r][v]);
  }

  template <int R>
  static void gather(const float* const* values, int column, const float* weights, int keys,
                     float* out) {
    F sum[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sum[r][v] = load<F>(out + (column + r) * kWide + v * N);
    for (int j = 0; j < keys; ++j) {
      F w[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) w[v] = load<F>(weights + j * kWide + v * N);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[r][v] += w[v] * values[j][column + r];
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) store(out + (column + r) * kWide + v * N, sum[r][v]);
  }

  // One block of keys at positions first .. first + count - 1 into the running softmax.
  static void keys(const float* const* k, const float* const* v_rows, int count, int first,
                   const Heads& h, const int32_t* position, AttentionScratch& s, F* top, F* mass) {
    int j = 0;
    for (; j + kRows <= count; j += kRows)
      score<kRows>(k + j, s.q, h.key_width, s.scores + j * kWide);
    for (; j < count; ++j) score<1>(k + j, s.q, h.key_width, s.scores + j * kWide);

    const F lowest = F{} + kLowest, zero = F{};
    for (int v = 0; v < V; ++v) {
      I at, oldest;
      std::memcpy(&at, position + v * N, sizeof at);
      oldest = h.window < 0 ? I{} : at - h.window;
      F highest = top[v];
      for (int i = 0; i < count; ++i) {
        float* cell = s.scores + i * kWide + v * N;
        const I key = I{} + (first + i);
        const F value = (key <= at) & (key >= oldest) ? load<F>(cell) : lowest;
        store(cell, value);
        highest = value > highest ? value : highest;
      }
      const F shrink = exp<N>(top[v] - highest);
      F sum = mass[v] * shrink;
      for (int i = 0; i < count; ++i) {
        float* cell = s.scores + i * kWide + v * N;
        const F value = load<F>(cell);
        const F weight = value == lowest ? zero : exp<N>(value - highest);
        store(cell, weight);
        sum += weight;
      }
      top[v] = highest;
      mass[v] = sum;
      for (int c = 0; c < h.value_width; ++c) {
        float* cell = s.out + c * kWide + v * N;
        store(cell, load<F>(cell) * shrink);
      }
    }
    int c = 0;
    for (; c + kRows <= h.value_width; c += kRows)
      gather<kRows>(v_rows, c, s.scores, count, s.out);
    for (; c < h.value_width; ++c) gather<1>(v_rows, c, s.scores, count, s.out);
  }

  // ``rows`` rows of one request from position ``start`` on, for key head ``group``.
  template <class Kv>
  static void run(const Heads& h, int group, int64_t start, int rows, const float* q, int64_t ldq,
                  const Kv* k_pool, const Kv* v_pool, Slots slot, float* out, int64_t ldo,
                  AttentionScratch& s) {
    const int sharing = h.heads / h.kv_heads, used = rows * sharing;
    int32_t position[kQueries];
    alignas(64) float sink[kQueries];
    for (int i = 0; i < kWide; ++i) {
      const int row = std::min(i, used - 1) / sharing, head = group * sharing + i % sharing;
      position[i] = int32_t(start) + row;
      sink[i] = h.sinks ? h.sinks[head] : kLowest;
      const float* from = q + row * ldq + head * h.key_width;
      for (int d = 0; d < h.key_width; ++d) s.q[d * kWide + i] = from[d] * h.scale;
    }
    F top[V], mass[V];
    for (int v = 0; v < V; ++v) {
      top[v] = load<F>(sink + v * N);
      mass[v] = F{} + (h.sinks ? 1.0f : 0.0f);
    }
    std::fill(s.out, s.out + h.value_width * kWide, 0.0f);

    const int64_t last = start + rows - 1;
    const int64_t oldest = h.window < 0 ? 0 : std::max<int64_t>(0, start - h.window);
    const float *k_rows[kKeys], *v_rows[kKeys];
    for (int64_t at = oldest; at <= last;) {
      const int64_t end = std::min<int64_t>(last + 1, (at / kKeys + 1) * kKeys);
      const int count = int(end - at);
      int64_t lies[kKeys];
      for (int i = 0; i < count; ++i) {
        lies[i] = slot(at + i) * h.kv_heads + group;
        prefetch(k_pool + lies[i] * h.key_width, h.key_width);
        prefetch(v_pool + lies[i] * h.value_width, h.value_width);
      }
      for (int i = 0; i < count; ++i) {
        k_rows[i] = widened(k_pool + lies[i] * h.key_width, h.key_width, s.keys + i * kMaxWidth);
        v_rows[i] = widened(v_pool + lies[i] * h.value_width, h.value_width, s.values + i * kMaxWidth);
      }
      keys(k_rows, v_rows, count, int(at), h, position, s, top, mass);
      at = end;
    }
    for (int v = 0; v < V; ++v)
      for (int lane = 0; lane < N && v * N + lane < used; ++lane) {
        const int i = v * N + lane, head = group * sharing + i % sharing;
        float* to = out + (i / sharing) * ldo + head * h.value_width;
        for (int c = 0; c < h.value_width; ++c) to[c] = s.out[c * kWide + i] / mass[v][lane];
      }
  }
};

// New rows of one request at positions start .. start + rows - 1; q [rows, ldq], out [rows, ldo].
template <class Kv>
inline void attend(const Heads& h, int64_t start, int64_t rows, const float* q, int64_t ldq,
                   const Kv* k_pool, const Kv* v_pool, Slots slot, float* out, int64_t ldo,
                   AttentionScratch& scratch) {
  const int sharing = h.heads / h.kv_heads;
  const int64_t most = std::max(1, kQueries / sharing);
  for (int64_t row = 0; row < rows; row += most) {
    const int block = int(std::min(most, rows - row));
    const int used = block * sharing;
    for (int group = 0; group < h.kv_heads; ++group) {
      auto with = [&](auto shape) {
        decltype(shape)::run(h, group, start + row, block, q + row * ldq, ldq, k_pool, v_pool, slot,
                             out + row * ldo, ldo, scratch);
      };
      if (used <= 4)
        with(Block<4, 1>{});
      else if (used <= 8)
        with(Block<8, 1>{});
      else if (used <= 16)
        with(Block<16, 1>{});
      else if (used <= 32)
        with(Block<16, 2>{});
      else
        with(Block<16, 4>{});
    }
  }
}

}  // namespace omni
