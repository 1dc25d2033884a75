// SPDX-License-Identifier: Apache-2.0
// A register of floats, as wide as the instruction set has, and what the kernels do with it. GCC's
// vector types do the arithmetic; intrinsics stand only where those have no word for it. Everything
// has internal linkage, since each instruction set compiles it anew.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define FLEET_INLINE inline __attribute__((always_inline))

namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

FLEET_INLINE Floats splat(float x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (Floats)_mm256_set1_ps(x);
#else
  return Floats{x, x, x, x};
#endif
}
FLEET_INLINE Floats choose(Ints mask, Floats a, Floats b) { return mask ? a : b; }
// The second where one is NaN.
FLEET_INLINE Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
FLEET_INLINE Floats absolute(Floats x) { return (Floats)((Bits)x & 0x7fffffffu); }
FLEET_INLINE Floats negative(Floats x) { return (Floats)((Bits)x ^ 0x80000000u); }

FLEET_INLINE Floats load(const float* p) {
  Floats x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}
FLEET_INLINE void store(float* p, Floats x) { __builtin_memcpy(p, &x, sizeof(x)); }

// bfloat16 is the upper half of a float.
FLEET_INLINE Floats load(const uint16_t* p) {
#if defined(__AVX512F__)  // GCC 12 makes five instructions of the conversion below
  return (Floats)_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16);
#else
  Halves x;
  __builtin_memcpy(&x, p, sizeof(x));
  return (Floats)(__builtin_convertvector(x, Bits) << 16);
#endif
}
// To nearest even; a NaN stays one.
FLEET_INLINE void store(uint16_t* p, Floats x) {
#if defined(__AVX512BF16__)  // rounds likewise; numbers below 2^-126 become 0
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
  const Bits bits = (Bits)x;
  const Bits rounded = (bits + (0x7fffu + ((bits >> 16) & 1u))) >> 16;
  const Ints is_nan = (Ints)(bits & 0x7fffffffu) > 0x7f800000;
  const Halves result =
      __builtin_convertvector((Bits)(is_nan ? (Bits{} + 0x7fc0u) : rounded), Halves);
  __builtin_memcpy(p, &result, sizeof(result));
#endif
}

FLEET_INLINE float get(const float* p) { return *p; }
FLEET_INLINE float get(const uint16_t* p) {
  const uint32_t bits = static_cast<uint32_t>(*p) << 16;
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
FLEET_INLINE void put(float* p, float x) { *p = x; }
FLEET_INLINE void put(uint16_t* p, float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  *p = static_cast<uint16_t>(is_nan ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The first `left` lanes where there are not enough for all; the rest is 0.
template <typename T>
FLEET_INLINE Floats load(const T* p, int64_t left) {
  if (__builtin_expect(left >= kLanes, 1)) return load(p);
  alignas(64) T lanes[kLanes] = {};
  for (int64_t i = 0; i < left; ++i) lanes[i] = p[i];
  return load(lanes);
}
template <typename T>
FLEET_INLINE void store(T* p, Floats x, int64_t left) {
  if (__builtin_expect(left >= kLanes, 1)) return store(p, x);
  alignas(64) T lanes[kLanes];
  store(lanes, x);
  for (int64_t i = 0; i < left; ++i) p[i] = lanes[i];
}

FLEET_INLINE float sum_of(Floats x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)x);
#else
  float sum = 0;
  for (int64_t i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
#endif
}
FLEET_INLINE float largest_of(Floats x) {
  float most = x[0];
  for (int64_t i = 1; i < kLanes; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

// Lane i is all ones where bit i is set.
FLEET_INLINE Ints lanes_of(uint32_t bits) {
#if defined(__AVX512F__)
  return (Ints)_mm512_movm_epi32(static_cast<__mmask16>(bits));
#else
  Ints place;
  for (int64_t i = 0; i < kLanes; ++i) place[i] = 1 << i;
  return ((Ints{} + static_cast<int32_t>(bits)) & place) == place;
#endif
}
// x where the bit is set, else 0.
FLEET_INLINE Floats where(uint32_t bits, Floats x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_mov_ps(static_cast<__mmask16>(bits), (__m512)x);
#else
  return (Floats)(lanes_of(bits) & (Ints)x);
#endif
}

FLEET_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
FLEET_INLINE int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// 2^t to 3e-9, for t <= 127; below -126 it stays at 2^-126. The polynomial interpolates 2^f at the
// Chebyshev nodes of [-0.5, 0.5]. Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
// Lanes beyond the last element may hold anything.
FLEET_INLINE Floats exp2_of(Floats t) {
  t = larger(splat(-126.0f), t);
  const Floats shifted = t + 12582912.0f;
  const Floats f = t - (shifted - 12582912.0f);
  Floats p = splat(1.546144470e-4f);
  p = p * f + 1.340042818e-3f;
  p = p * f + 9.618056679e-3f;
  p = p * f + 5.550327227e-2f;
  p = p * f + 2.402265092e-1f;
  p = p * f + 6.931472067e-1f;
  p = p * f + 1.0f;
  return (Floats)((Bits)p + ((Bits)shifted << 23));
}
constexpr float kLog2e = 1.44269504088896f;
FLEET_INLINE Floats exp_of(Floats x) { return exp2_of(x * kLog2e); }

}  // namespace
