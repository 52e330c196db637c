// C[T, N] = A[T, K] * W[N, K]^T for weights packed in panels of 32 output columns.
//
// Each output is one chain of fused multiply-adds in the order of k, whatever T is, so a row's
// result does not depend on the rows it is computed with.
#pragma once

#include <algorithm>

#include "simd.h"

namespace omni {

constexpr int kPanel = 32;
constexpr int kVectors = kPanel / kLanes;  // per panel
#ifdef __AVX512F__
constexpr int kMaxRows = 6, kMaxPanels = 2;  // 24 of 32 registers accumulate
#else
constexpr int kMaxRows = 3, kMaxPanels = 1;  // 12 of 16
#endif

inline int64_t padded(int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }

// out[R][P * kPanel] = R rows of A times P neighbouring panels.
template <int R, int P, class W>
inline void tile(const float* a, int64_t lda, const W* w, int64_t k_size, float* out) {
  typedef typename Simd<kLanes>::F F;
  F sum[R][P * kVectors] = {};
  const int64_t panel = k_size * kPanel;
  for (int64_t k = 0; k < k_size; ++k) {
    F column[P * kVectors];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        column[p * kVectors + v] = weights<kLanes>(w + p * panel + k * kPanel + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F x = F{} + a[r * lda + k];
#pragma GCC unroll 8
      for (int v = 0; v < P * kVectors; ++v) sum[r][v] += x * column[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < P * kVectors; ++v) store(out + r * P * kPanel + v * kLanes, sum[r][v]);
}

template <int P, class W>
inline void tile_rows(int rows, const float* a, int64_t lda, const W* w, int64_t k, float* out) {
  switch (rows) {
    case 1: return tile<1, P>(a, lda, w, k, out);
    case 2: return tile<2, P>(a, lda, w, k, out);
#ifdef __AVX512F__
    case 3: return tile<3, P>(a, lda, w, k, out);
    case 4: return tile<4, P>(a, lda, w, k, out);
    case 5: return tile<5, P>(a, lda, w, k, out);
#endif
    default: return tile<kMaxRows, P>(a, lda, w, k, out);
  }
}

// Calls ``use(row, column, panels, values)`` for every tile row; ``n`` is padded.
template <class W, class Use>
inline void multiply(const float* a, int64_t rows, int64_t lda, const W* w, int64_t n, int64_t k,
                     Use use) {
  alignas(64) float out[kMaxRows * kMaxPanels * kPanel];
  for (int64_t column = 0; column < n;) {
    const int panels = n - column >= kMaxPanels * kPanel ? kMaxPanels : 1;
    const W* panel = w + column * k;
    for (int64_t row = 0; row < rows; row += kMaxRows) {
      const int block = int(std::min<int64_t>(kMaxRows, rows - row));
      if (panels == kMaxPanels)
        tile_rows<kMaxPanels>(block, a + row * lda, lda, panel, k, out);
      else
        tile_rows<1>(block, a + row * lda, lda, panel, k, out);
      for (int r = 0; r < block; ++r)
        use(row + r, column, panels, out + r * panels * kPanel);
    }
    column += panels * kPanel;
  }
}

// C = A W^T, or C += A W^T; only the first ``n`` columns are written.
template <bool Add, class W>
inline void linear(const float* a, int64_t rows, int64_t lda, const W* w, int64_t n, int64_t k,
                   float* c, int64_t ldc) {
  multiply(a, rows, lda, w, padded(n), k,
           [&](int64_t row, int64_t column, int panels, const float* values) {
             float* to = c + row * ldc + column;
             const int64_t width = std::min<int64_t>(panels * kPanel, n - column);
             for (int64_t i = 0; i < width; ++i) to[i] = Add ? to[i] + values[i] : values[i];
           });
}

// H[T, inner] = silu(A G^T) * (A U^T); a panel holds 16 rows of G, then the same 16 rows of U.
template <class W>
inline void gated(const float* a, int64_t rows, int64_t lda, const W* w, int64_t inner, int64_t k,
                  float* h) {
  constexpr int kHalf = kPanel / 2;
  typedef typename Simd<kHalf>::F F;
  const int64_t width = (inner + kHalf - 1) / kHalf * kHalf;
  multiply(a, rows, lda, w, 2 * width, k,
           [&](int64_t row, int64_t column, int panels, const float* values) {
             for (int p = 0; p < panels; ++p) {
               const F gate = load<F>(values + p * kPanel), up = load<F>(values + p * kPanel + kHalf);
               const F one = F{} + 1.0f;
               store(h + row * width + column / 2 + p * kHalf,
                     gate / (one + exp<kHalf>(-gate)) * up);
             }
           });
}

}  // namespace omni
