// SPDX-License-Identifier: Apache-2.0
// GELU (Hendrycks and Gimpel, arXiv 1606.08415): x times the normal distribution's integral up to x.

namespace {

using fleet::ops::GeluArgs;

/// Of a value: the factor that GELU puts before it, and that factor's slope.
struct Gate {
  Floats value;
  Floats slope;
};

// The integral up to -|x| is exp(-x^2 / 2) t P(t), t = 1 / (1 + 0.45 |x| / sqrt(2)), and its
// exponential is also the density. P is fitted so that it errs by at most 3e-7 of its value for
// every x whose tail a float can hold: small results are as precise as large ones.
FLEET_INLINE Gate gate_erf(Floats x) {
  const Floats e = exp2_of(x * x * (-0.5f * kLog2e));
  const Floats t = 1.0f / (absolute(x) * (0.45f * 0.70710678118655f) + 1.0f);
  Floats p = splat(0.0332167122f);
  p = p * t - 0.119189808f;
  p = p * t + 0.102714908f;
  p = p * t + 0.0217867519f;
  p = p * t + 0.0934198222f;
  p = p * t + 0.114322819f;
  p = p * t + 0.126771356f;
  p = p * t + 0.126957587f;
  const Floats tail = p * t * e;
  return {choose(x < 0.0f, tail, 1.0f - tail), e * 0.398942280401433f};
}

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
FLEET_INLINE Gate gate_tanh(Floats x) {
  constexpr float kFactor = 2.0f * 0.797884560802865f;
  const Floats square = x * x;
  const Floats u = x * (square * (kFactor * 0.044715f) + kFactor);
  // Beyond 80 it is 0 or 1; a NaN stays one.
  const Floats bounded = choose(u < -80.0f, splat(-80.0f), choose(u > 80.0f, splat(80.0f), u));
  const Floats value = 1.0f / (1.0f + exp2_of(bounded * -kLog2e));
  return {value, value * (1.0f - value) * (square * (3.0f * kFactor * 0.044715f) + kFactor)};
}

template <typename T, bool Tanh, bool Backward>
FLEET_INLINE void gelu_rows(const GeluArgs& args, int64_t begin, int64_t end) {
  const int64_t width = args.width;
  const RandomStream stream = *args.stream;
  const T* x_all = static_cast<const T*>(args.x);
  T* y_all = static_cast<T*>(args.y);
  T* dx_all = static_cast<T*>(args.dx);
  T* recomputed = static_cast<T*>(args.recomputed);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = x_all + r * width;
    T* y = y_all + r * width;
    for_row(stream, r / args.rows_per_sample, r % args.rows_per_sample * width, width,
            [&](int64_t i, Floats keep, int64_t left) __attribute__((always_inline)) {
              Floats v = load(x + i, left);
              if (args.bias) v += load(args.bias + i, left);
              const Gate gate = Tanh ? gate_tanh(v) : gate_erf(v);
              if constexpr (Backward) {
                const Floats d = load(y + i, left) * keep * (v * gate.slope + gate.value);
                store(dx_all + r * width + i, d, left);
                if (recomputed) store(recomputed + r * width + i, v * gate.value * keep, left);
                if (args.dbias) store(args.dbias + i, load(args.dbias + i, left) + d, left);
              } else {
                store(y + i, v * gate.value * keep, left);
              }
            });
  }
}

template <typename T>
void gelu(const GeluArgs& args, int64_t begin, int64_t end) {
  if (args.tanh) {
    gelu_rows<T, true, false>(args, begin, end);
  } else {
    gelu_rows<T, false, false>(args, begin, end);
  }
}

template <typename T>
void gelu_backward(const GeluArgs& args, int64_t begin, int64_t end) {
  if (args.tanh) {
    gelu_rows<T, true, true>(args, begin, end);
  } else {
    gelu_rows<T, false, true>(args, begin, end);
  }
}

}  // namespace
