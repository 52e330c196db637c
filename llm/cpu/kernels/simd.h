// Vectors of floats through GCC's vector extension: one source for AVX-512 and AVX2.
#pragma once

#include <cstdint>
#include <cstring>

namespace omni {

#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

template <int N>
struct Simd {
  typedef float F __attribute__((vector_size(4 * N)));
  typedef int32_t I __attribute__((vector_size(4 * N)));
  typedef uint32_t U __attribute__((vector_size(4 * N)));
  typedef uint16_t Half __attribute__((vector_size(2 * N)));
};

template <class V>
inline V load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class V>
inline void store(float* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

struct bf16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }

inline float widen(bf16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

inline void narrow(float x, float* out) { *out = x; }

// Round to nearest, ties to even, as PyTorch does; NaN stays NaN.
inline void narrow(float x, bf16* out) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    out->bits = 0x7fc0;
    return;
  }
  out->bits = uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// N consecutive weights as floats.
template <int N>
inline typename Simd<N>::F weights(const float* p) {
  return load<typename Simd<N>::F>(p);
}

template <int N>
inline typename Simd<N>::F weights(const bf16* p) {
  typename Simd<N>::Half half;
  std::memcpy(&half, p, sizeof half);
  const typename Simd<N>::U bits = __builtin_convertvector(half, typename Simd<N>::U) << 16;
  typename Simd<N>::F out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// e^x within 2 ulp; exactly 1 at 0; 0 below -87.
template <int N>
inline typename Simd<N>::F exp(typename Simd<N>::F x) {
  typedef typename Simd<N>::F F;
  typedef typename Simd<N>::I I;
  const F low = F{} - 87.0f, high = F{} + 88.0f;
  const I under = x < low;
  x = x < low ? low : x;
  x = x > high ? high : x;
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer.
  const F n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
  const F r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  F p = F{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  const I power = (__builtin_convertvector(n, I) + 127) << 23;
  F scale;
  std::memcpy(&scale, &power, sizeof scale);
  const F zero = F{};
  return under ? zero : p * scale;
}

}  // namespace omni
