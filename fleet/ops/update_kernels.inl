// The kernels of update_kernels.h, compiled once per instruction set by the sources that include
// this. Everything has internal linkage. Loops are plain, over restricted pointers, and vectorised
// by the compiler; where a second look at fresh results is needed (rounding to bf16, norms of what
// is not stored) it follows tile by tile, while they are in the first-level cache.

#include "fleet/ops/update_kernels.h"

namespace {

using fleet::ops::AdamStep;
using fleet::ops::LambStep;
using fleet::ops::MomentumStep;
using fleet::ops::SgdStep;
using fleet::ops::SquareSums;

constexpr int64_t kTile = 1024;

#define FLEET_RESTRICT __restrict__

inline int64_t shorter(int64_t a, int64_t b) { return a < b ? a : b; }

// Round to nearest even; a NaN stays one.
inline void round_to_bf16(const float* FLEET_RESTRICT w, uint16_t* FLEET_RESTRICT low, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, w + i, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    low[i] = static_cast<uint16_t>(is_nan ? 0x7fc0u : rounded);
  }
}

// Four vectors of floats at a time, each half widened and added in its own accumulator: enough
// independent chains to hide the latency of an addition.
typedef float HalfVector
    __attribute__((vector_size(FLEET_VECTOR_BYTES / 2), aligned(4), may_alias));
typedef double Doubles __attribute__((vector_size(FLEET_VECTOR_BYTES)));
constexpr int64_t kHalf = FLEET_VECTOR_BYTES / 8;

inline double square_sum_of(const float* x, int64_t n) {
  Doubles a = {}, b = {}, c = {}, d = {};
  int64_t i = 0;
  for (; i + 4 * kHalf <= n; i += 4 * kHalf) {
    const HalfVector* p = reinterpret_cast<const HalfVector*>(x + i);
    const Doubles p0 = __builtin_convertvector(p[0], Doubles);
    const Doubles p1 = __builtin_convertvector(p[1], Doubles);
    const Doubles p2 = __builtin_convertvector(p[2], Doubles);
    const Doubles p3 = __builtin_convertvector(p[3], Doubles);
    a += p0 * p0;
    b += p1 * p1;
    c += p2 * p2;
    d += p3 * p3;
  }
  a = (a + b) + (c + d);
  double sum = 0;
  for (int64_t lane = 0; lane < kHalf; ++lane) sum += a[lane];
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

double square_sum(const float* x, int64_t n) { return square_sum_of(x, n); }

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
      const float m1 = s.beta1 * m[i] + s.rest1 * d;
      const float v1 = s.beta2 * v[i] + s.rest2 * (d * d);
      m[i] = m1;
      v[i] = v1;
      w[i] = s.keep * w[i] - s.step * (m1 / (s.root_correction * __builtin_sqrtf(v1) + s.epsilon));
    }
    if (low) round_to_bf16(w, low + begin, length);
  }
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
      const float m1 = s.beta1 * m[i] + s.rest1 * d;
      const float v1 = s.beta2 * v[i] + s.rest2 * (d * d);
      m[i] = m1;
      v[i] = v1;
      u[i] = lamb_update(s, w[i], m1, v1);
    }
    sums.value += square_sum_of(w, length);
    sums.update += square_sum_of(u, length);
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
}

constexpr fleet::ops::UpdateKernels kKernels = {FLEET_KERNELS_NAME, sgd,        momentum,  adam,
                                                lamb_moments,       lamb_apply, square_sum};

}  // namespace
