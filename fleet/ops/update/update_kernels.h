// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Included by sources that are compiled for other instruction sets than the rest: plain types only,
// so that no inline function of another header is emitted with instructions that a CPU may lack.

namespace fleet::ops {

// One pass of an optimizer over a run of one parameter. Gradients are multiplied by
// `gradient_scale` as they are read: unscaling and clipping cost no pass of their own. `low`, when
// it is not null, receives the new values rounded to bf16.

/// w -= lr (g + weight_decay w)
struct SgdStep {
  float gradient_scale;
  float weight_decay;
  float lr;
};

/// d = g + weight_decay w;  v = momentum v + inner d;  w -= outer v, or with Nesterov
/// outer (inner d + momentum v). Momentum: inner = 1, outer = lr. LARS puts its ratio, and by
/// default the learning rate too, inside.
struct MomentumStep {
  float gradient_scale;
  float weight_decay;
  float momentum;
  float inner;
  float outer;
  bool nesterov;
};

/// m = beta1 m + (1 - beta1) d;  v = beta2 v + (1 - beta2) d^2;
/// w = decay_factor w - step m / (root_correction sqrt(v) + epsilon), with d = g + l2 w.
struct AdamStep {
  float gradient_scale;
  float l2;
  float decay_factor;
  float beta1;
  float beta2;
  float one_minus_beta1;  // 1 - beta1, taken in double: 1 - 0.999f has lost three digits
  float one_minus_beta2;
  float step;
  float root_correction;
  float epsilon;
};

/// u = correction m / (root_correction sqrt(v) + epsilon) + weight_decay w
struct LambStep {
  float gradient_scale;
  float weight_decay;
  float beta1;
  float beta2;
  float one_minus_beta1;  // 1 - beta1, taken in double: 1 - 0.999f has lost three digits
  float one_minus_beta2;
  float correction;
  float root_correction;
  float epsilon;
};

/// Sums of squares, in double: exact enough for any length, and finite for any finite floats, so
/// that a sum that is not finite tells of an element that is not.
struct SquareSums {
  double value;
  double update;
};

/// The kernels of one instruction set.
struct UpdateKernels {
  const char* name;
  void (*sgd)(const SgdStep&, float* w, const float* g, int64_t n, uint16_t* low);
  void (*momentum)(const MomentumStep&, float* w, const float* g, float* v, int64_t n,
                   uint16_t* low);
  void (*adam)(const AdamStep&, float* w, const float* g, float* m, float* v, int64_t n,
               uint16_t* low);
  /// LAMB's first pass: the moments move, and |w|^2 and |u|^2 come back. u is not stored.
  SquareSums (*lamb_moments)(const LambStep&, const float* w, const float* g, float* m, float* v,
                             int64_t n);
  /// LAMB's second pass: w -= step u, with u computed again, which is cheaper than storing it.
  void (*lamb_apply)(const LambStep&, float step, float* w, const float* m, const float* v,
                     int64_t n, uint16_t* low);
  double (*square_sum)(const float* x, int64_t n);
  /// Where `low` is not w rounded to bf16, it was written in place: w takes its value.
  void (*refresh_master)(float* w, const uint16_t* low, int64_t n);
};

/// The best instruction set that this CPU has; FLEET_CPU = generic, avx2, avx512 or avx512_bf16
/// picks another.
const char* instruction_set();

/// For that one.
const UpdateKernels& update_kernels();

/// Null when this build or this CPU lacks it.
const UpdateKernels* update_kernels_for(const char* name);

}  // namespace fleet::ops
