// SPDX-License-Identifier: Apache-2.0
// The kernels of update_kernels.h, compiled once per instruction set by the sources that include
// this. Everything has internal linkage. Loops are plain, over restricted pointers, and vectorised
// by the compiler; where a second look at fresh results is needed (rounding to bf16, norms of what
// is not stored) it follows tile by tile, while they are in the first-level cache.

#include "fleet/ops/update/update_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

using fleet::ops::AdamStep;
using fleet::ops::LambStep;
using fleet::ops::MomentumStep;
using fleet::ops::SgdStep;
using fleet::ops::SquareSums;

constexpr int64_t kTile = 1024;

#define FLEET_RESTRICT __restrict__

inline int64_t shorter(int64_t a, int64_t b) { return a < b ? a : b; }

// A register of floats, and the halves of one as doubles.
#if defined(__AVX512F__)
using Floats = __m512;
using Doubles = __m512d;
inline Floats load(const float* x) { return _mm512_loadu_ps(x); }
inline Doubles lower(Floats x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
inline Doubles upper(Floats x) {
  return _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
}
#elif defined(__AVX2__)
using Floats = __m256;
using Doubles = __m256d;
inline Floats load(const float* x) { return _mm256_loadu_ps(x); }
inline Doubles lower(Floats x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
inline Doubles upper(Floats x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
#else
typedef float Floats __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(16)));
inline Floats load(const float* x) { return Floats{x[0], x[1], x[2], x[3]}; }
inline Doubles lower(Floats x) { return Doubles{x[0], x[1]}; }
inline Doubles upper(Floats x) { return Doubles{x[2], x[3]}; }
#endif
constexpr int64_t kLanes = sizeof(Floats) / sizeof(float);

inline double square_sum_in_double(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

// Squares are added in fours as floats, then as doubles: converting costs more than all the rest.
// Where a square may have left the range of float, it is done again, one by one.
inline double square_sum_of_tile(const float* x, int64_t n) {
  Doubles a = {}, b = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const Floats x0 = load(x + i);
    const Floats x1 = load(x + i + kLanes);
    const Floats x2 = load(x + i + 2 * kLanes);
    const Floats x3 = load(x + i + 3 * kLanes);
    const Floats four = (x0 * x0 + x1 * x1) + (x2 * x2 + x3 * x3);
    a += lower(four);
    b += upper(four);
  }
  a += b;
  double sum = 0;
  for (int64_t lane = 0; lane < kLanes / 2; ++lane) sum += a[lane];
  constexpr double kLeast = 1e-28, kMost = 1e37;
  if (i > 0 && !(sum > kLeast && sum < kMost)) sum = square_sum_in_double(x, i);
  return sum + square_sum_in_double(x + i, n - i);
}

// Tile by tile, so that a kernel that sums up what it has just written gets the very same number.
inline double square_sum_of(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kTile) {
    sum += square_sum_of_tile(x + begin, shorter(kTile, n - begin));
  }
  return sum;
}

// Round to nearest even; a NaN stays one.
inline uint16_t to_bf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? 0x7fc0u : rounded);
}

// So many floats at once, rounded as by to_bf16 and packed.
#if defined(__AVX512F__)
inline __m256i rounded(const float* x) {
  const __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(x));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_srli_epi32(
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(
      _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)), _mm512_set1_epi32(0x7f800000));
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(nearest, is_nan, _mm512_set1_epi32(0x7fc0)));
}
constexpr int64_t kRounded = 16;
#elif defined(__AVX2__)
inline __m256i rounded(const float* x) {
  const auto half = [](const float* y) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(y));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i is_nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)),
                                              _mm256_set1_epi32(0x7f800000));
    return _mm256_blendv_epi8(nearest, _mm256_set1_epi32(0x7fc0), is_nan);
  };
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(half(x), half(x + 8)), 0xd8);
}
constexpr int64_t kRounded = 16;
#endif

// The copy is written past the caches where its place is aligned: nothing reads it before the next
// forward, and fetching lines only to overwrite them would cost as much again.
inline void round_to_bf16(const float* w, uint16_t* low, int64_t n) {
  int64_t i = 0;
#if defined(__AVX2__)
  if (reinterpret_cast<uintptr_t>(low) % 32 == 0) {
    for (; i + kRounded <= n; i += kRounded) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(low + i), rounded(w + i));
    }
  }
#endif
  for (; i < n; ++i) low[i] = to_bf16(w[i]);
}

inline bool is_rounded_copy(const float* w, const uint16_t* low, int64_t n) {
  int64_t i = 0;
  bool same = true;
#if defined(__AVX2__)
  __m256i different = _mm256_setzero_si256();
  for (; i + kRounded <= n; i += kRounded) {
    const __m256i there = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low + i));
    different = _mm256_or_si256(different, _mm256_xor_si256(rounded(w + i), there));
  }
  same = _mm256_testz_si256(different, different) != 0;
#endif
  uint32_t differ = 0;
  for (; i < n; ++i) differ |= static_cast<uint32_t>(to_bf16(w[i]) ^ low[i]);
  return same && differ == 0;
}

// Makes what was written past the caches visible before the threads meet.
inline void finish_low(const uint16_t* low) {
#if defined(__AVX2__)
  if (low) _mm_sfence();
#endif
}

double square_sum(const float* x, int64_t n) { return square_sum_of(x, n); }

void refresh_master(float* w, const uint16_t* low, int64_t n) {
  if (is_rounded_copy(w, low, n)) return;
  for (int64_t i = 0; i < n; ++i) {
    if (to_bf16(w[i]) == low[i]) continue;
    const uint32_t bits = static_cast<uint32_t>(low[i]) << 16;
    __builtin_memcpy(w + i, &bits, sizeof(bits));
  }
}

void sgd(const SgdStep& step, float* w_all, const float* g_all, int64_t n, uint16_t* low) {
  const SgdStep s = step;
  for (int64_t begin = 0; begin < n; begin += kTile) {
    const int64_t length = shorter(kTile, n - begin);
    float* FLEET_RESTRICT w = w_all + begin;
    const float* FLEET_RESTRICT g = g_all + begin;
    for (int64_t i = 0; i < length; ++i) {
      const float d = s.gradient_scale * g[i] + s.weight_decay * w[i];
      w[i] -= s.lr * d;
    }
    if (low) round_to_bf16(w, low + begin, length);
  }
  finish_low(low);
}

template <bool Nesterov>
inline void momentum_tile(const MomentumStep& s, float* FLEET_RESTRICT w,
                          const float* FLEET_RESTRICT g, float* FLEET_RESTRICT v, int64_t n) {
  const MomentumStep c = s;
  for (int64_t i = 0; i < n; ++i) {
    const float d = c.inner * (c.gradient_scale * g[i] + c.weight_decay * w[i]);
    const float velocity = c.momentum * v[i] + d;
    v[i] = velocity;
    w[i] -= c.outer * (Nesterov ? d + c.momentum * velocity : velocity);
  }
}

void momentum(const MomentumStep& s, float* w, const float* g, float* v, int64_t n, uint16_t* low) {
  for (int64_t begin = 0; begin < n; begin += kTile) {
    const int64_t length = shorter(kTile, n - begin);
    if (s.nesterov) {
      momentum_tile<true>(s, w + begin, g + begin, v + begin, length);
    } else {
      momentum_tile<false>(s, w + begin, g + begin, v + begin, length);
    }
    if (low) round_to_bf16(w + begin, low + begin, length);
  }
  finish_low(low);
}

void adam(const AdamStep& step, float* w_all, const float* g_all, float* m_all, float* v_all,
          int64_t n, uint16_t* low) {
  const AdamStep s = step;
  for (int64_t begin = 0; begin < n; begin += kTile) {
    const int64_t length = shorter(kTile, n - begin);
    float* FLEET_RESTRICT w = w_all + begin;
    const float* FLEET_RESTRICT g = g_all + begin;
    float* FLEET_RESTRICT m = m_all + begin;
    float* FLEET_RESTRICT v = v_all + begin;
    for (int64_t i = 0; i < length; ++i) {
      const float d = s.gradient_scale * g[i] + s.l2 * w[i];
      const float m1 = s.beta1 * m[i] + s.one_minus_beta1 * d;
      const float v1 = s.beta2 * v[i] + s.one_minus_beta2 * (d * d);
      m[i] = m1;
      v[i] = v1;
      w[i] = s.decay_factor * w[i] - s.step * (m1 / (s.root_correction * __builtin_sqrtf(v1) + s.epsilon));
    }
    if (low) round_to_bf16(w, low + begin, length);
  }
  finish_low(low);
}

inline float lamb_update(const LambStep& s, float w, float m, float v) {
  return s.correction * m / (s.root_correction * __builtin_sqrtf(v) + s.epsilon) +
         s.weight_decay * w;
}

SquareSums lamb_moments(const LambStep& step, const float* w_all, const float* g_all, float* m_all,
                        float* v_all, int64_t n) {
  const LambStep s = step;
  SquareSums sums = {0, 0};
  alignas(64) float u[kTile];
  for (int64_t begin = 0; begin < n; begin += kTile) {
    const int64_t length = shorter(kTile, n - begin);
    const float* FLEET_RESTRICT w = w_all + begin;
    const float* FLEET_RESTRICT g = g_all + begin;
    float* FLEET_RESTRICT m = m_all + begin;
    float* FLEET_RESTRICT v = v_all + begin;
    for (int64_t i = 0; i < length; ++i) {
      const float d = s.gradient_scale * g[i];
      const float m1 = s.beta1 * m[i] + s.one_minus_beta1 * d;
      const float v1 = s.beta2 * v[i] + s.one_minus_beta2 * (d * d);
      m[i] = m1;
      v[i] = v1;
      u[i] = lamb_update(s, w[i], m1, v1);
    }
    sums.value += square_sum_of_tile(w, length);
    sums.update += square_sum_of_tile(u, length);
  }
  return sums;
}

void lamb_apply(const LambStep& step, float rate, float* w_all, const float* m_all,
                const float* v_all, int64_t n, uint16_t* low) {
  const LambStep s = step;
  for (int64_t begin = 0; begin < n; begin += kTile) {
    const int64_t length = shorter(kTile, n - begin);
    float* FLEET_RESTRICT w = w_all + begin;
    const float* FLEET_RESTRICT m = m_all + begin;
    const float* FLEET_RESTRICT v = v_all + begin;
    for (int64_t i = 0; i < length; ++i) w[i] -= rate * lamb_update(s, w[i], m[i], v[i]);
    if (low) round_to_bf16(w, low + begin, length);
  }
  finish_low(low);
}

constexpr fleet::ops::UpdateKernels kKernels = {
    FLEET_KERNELS_NAME, sgd, momentum, adam, lamb_moments, lamb_apply, square_sum, refresh_master};

}  // namespace
