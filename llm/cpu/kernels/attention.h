// Causal attention over paged keys and values, with windows and sinks, for any number of new rows.
//
// Query vectors (rows of a request times the heads that share a key head) are the lanes of a
// vector, keys are broadcast from the pool where they lie. Keys go in blocks that start at
// multiples of kKeys positions and each lane sees its own keys in order, so a row's result does
// not depend on the rows it is computed with. All key heads of a block are done before the next
// block: its memory is read once, in order.
#pragma once

#include <algorithm>
#include <vector>

#include "simd.h"

namespace omni {

constexpr int kKeys = 64;       // keys per block
constexpr int kQueries = 64;    // query vectors per block
constexpr int kMaxWidth = 256;  // of keys and values
constexpr int kMaxGroups = 32;  // key heads
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

// The new rows of one request: positions start .. start + rows - 1.
struct Rows {
  Slots slot;
  int64_t start, rows;

  int64_t oldest(int window) const {
    return window < 0 ? 0 : std::max<int64_t>(0, start - window);
  }
  int64_t end() const { return start + rows; }
};

// Scratch of one call; too large for a stack frame.
struct AttentionScratch {
  std::vector<float> q, out;                       // [key heads, key or value width, lanes]
  alignas(64) float scores[kKeys * kQueries];      // [keys, lanes]
  alignas(64) float keys[kKeys * kMaxWidth];       // widened, for narrow pools
  alignas(64) float values[kKeys * kMaxWidth];

  static float* sized(std::vector<float>& v, int64_t n) {
    if (int64_t(v.size()) < n) v.resize(n);
    return v.data();
  }
};

inline const float* widened(const float* row, int, float*) { return row; }

inline const float* widened(const bf16* row, int width, float* into) {
  for (int i = 0; i < width; ++i) into[i] = widen(row[i]);
  return into;
}

template <class Kv>
struct Buffers {
  const Kv *keys, *values;  // [slots, key heads, width]
};

// Few rows read far more than they compute: have the next block of keys on its way early.
template <class Kv>
inline void prefetch(const Heads& h, const Buffers<Kv>& pool, const Rows& of, int64_t from) {
  const int64_t end = std::min(of.end(), (from / kKeys + 1) * kKeys);
  const auto row = [](const Kv* start, int64_t width) {
    const char* at = reinterpret_cast<const char*>(start);
    for (size_t byte = 0; byte < width * sizeof(Kv); byte += 64) __builtin_prefetch(at + byte, 0, 2);
  };
  for (; from < end; ++from) {
    const int64_t slot = of.slot(from), k_width = h.kv_heads * h.key_width;
    const int64_t v_width = h.kv_heads * h.value_width;
    row(pool.keys + slot * k_width, k_width);
    row(pool.values + slot * v_width, v_width);
  }
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
                   const Heads& h, const int32_t* position, const float* q, float* out,
                   float* scores, F* top, F* mass) {
    int j = 0;
    for (; j + kRows <= count; j += kRows)
      score<kRows>(k + j, q, h.key_width, scores + j * kWide);
    for (; j < count; ++j) score<1>(k + j, q, h.key_width, scores + j * kWide);

    const F lowest = F{} + kLowest, zero = F{};
    for (int v = 0; v < V; ++v) {
      I at, oldest;
      std::memcpy(&at, position + v * N, sizeof at);
      oldest = h.window < 0 ? I{} : at - h.window;
      F highest = top[v];
      for (int i = 0; i < count; ++i) {
        float* cell = scores + i * kWide + v * N;
        const I key = I{} + (first + i);
        const F value = (key <= at) & (key >= oldest) ? load<F>(cell) : lowest;
        store(cell, value);
        highest = value > highest ? value : highest;
      }
      const F shrink = exp<N>(top[v] - highest);
      F sum = mass[v] * shrink;
      for (int i = 0; i < count; ++i) {
        float* cell = scores + i * kWide + v * N;
        const F value = load<F>(cell);
        const F weight = value == lowest ? zero : exp<N>(value - highest);
        store(cell, weight);
        sum += weight;
      }
      top[v] = highest;
      mass[v] = sum;
      for (int c = 0; c < h.value_width; ++c) {
        float* cell = out + c * kWide + v * N;
        store(cell, load<F>(cell) * shrink);
      }
    }
    int c = 0;
    for (; c + kRows <= h.value_width; c += kRows)
      gather<kRows>(v_rows, c, scores, count, out);
    for (; c < h.value_width; ++c) gather<1>(v_rows, c, scores, count, out);
  }

  // A block of rows for every key head; ``q`` and ``out`` start at its first row.
  template <class Kv>
  static void run(const Heads& h, const Rows& of, const float* q, int64_t ldq,
                  const Buffers<Kv>& pool, float* out, int64_t ldo, const Rows* next,
                  AttentionScratch& s) {
    const int sharing = h.heads / h.kv_heads, used = int(of.rows) * sharing;
    const int q_size = h.key_width * kWide, out_size = h.value_width * kWide;
    float* queries = s.sized(s.q, h.kv_heads * q_size);
    float* sums = s.sized(s.out, h.kv_heads * out_size);
    F top[kMaxGroups][V], mass[kMaxGroups][V];
    int32_t position[kQueries];
    for (int group = 0; group < h.kv_heads; ++group) {
      alignas(64) float sink[kQueries];
      for (int i = 0; i < kWide; ++i) {
        const int row = std::min(i, used - 1) / sharing, head = group * sharing + i % sharing;
        position[i] = int32_t(of.start) + row;
        sink[i] = h.sinks ? h.sinks[head] : kLowest;
        const float* from = q + row * ldq + head * h.key_width;
        float* to = queries + group * q_size + i;
        for (int d = 0; d < h.key_width; ++d) to[d * kWide] = from[d] * h.scale;
      }
      for (int v = 0; v < V; ++v) {
        top[group][v] = load<F>(sink + v * N);
        mass[group][v] = F{} + (h.sinks ? 1.0f : 0.0f);
      }
    }
    std::fill(sums, sums + h.kv_heads * out_size, 0.0f);

    const float *k_rows[kKeys], *v_rows[kKeys];
    for (int64_t at = of.oldest(h.window); at < of.end();) {
      const int64_t end = std::min(of.end(), (at / kKeys + 1) * kKeys);
      const int count = int(end - at);
      int64_t lies[kKeys];
      for (int i = 0; i < count; ++i) lies[i] = of.slot(at + i) * h.kv_heads;
      if (end < of.end())
        prefetch(h, pool, of, end);
      else if (next)
        prefetch(h, pool, *next, next->oldest(h.window));
      for (int group = 0; group < h.kv_heads; ++group) {
        for (int i = 0; i < count; ++i) {
          const int64_t row = lies[i] + group;
          k_rows[i] = widened(pool.keys + row * h.key_width, h.key_width, s.keys + i * kMaxWidth);
          v_rows[i] = widened(pool.values + row * h.value_width, h.value_width,
                              s.values + i * kMaxWidth);
        }
        keys(k_rows, v_rows, count, int(at), h, position, queries + group * q_size,
             sums + group * out_size, s.scores, top[group], mass[group]);
      }
      at = end;
    }
    for (int group = 0; group < h.kv_heads; ++group)
      for (int i = 0; i < used; ++i) {
        const float whole = mass[group][i / N][i % N];
        float* to = out + (i / sharing) * ldo + (group * sharing + i % sharing) * h.value_width;
        const float* from = sums + group * out_size + i;
        for (int c = 0; c < h.value_width; ++c) to[c] = from[c * kWide] / whole;
      }
  }
};

// New rows of one request; q [rows, ldq], out [rows, ldo]. ``next``: what is asked for after it.
template <class Kv>
inline void attend(const Heads& h, const Rows& of, const float* q, int64_t ldq,
                   const Buffers<Kv>& pool, float* out, int64_t ldo, const Rows* next,
                   AttentionScratch& scratch) {
  const int sharing = h.heads / h.kv_heads;
  const int64_t most = std::max(1, kQueries / sharing);
  for (int64_t row = 0; row < of.rows; row += most) {
    const Rows block{of.slot, of.start + row, std::min(most, of.rows - row)};
    const int used = int(block.rows) * sharing;
    auto with = [&](auto shape) {
      decltype(shape)::run(h, block, q + row * ldq, ldq, pool, out + row * ldo, ldo, next, scratch);
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

}  // namespace omni
