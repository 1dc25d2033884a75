// SPDX-License-Identifier: Apache-2.0
// silu(gate) * up (Shazeer, arXiv 2002.05202), with the sigmoid computed again in backward.

namespace {

using fleet::ops::SwigluArgs;

FLEET_INLINE Floats sigmoid(Floats x) {
  const Floats bounded = choose(x < -87.0f, splat(-87.0f), choose(x > 87.0f, splat(87.0f), x));
  return 1.0f / (1.0f + exp2_of(bounded * -kLog2e));
}

template <typename T>
void swiglu(const SwigluArgs& args, int64_t begin, int64_t end) {
  const auto* gate = static_cast<const T*>(args.gate);
  const auto* up = static_cast<const T*>(args.up);
  auto* y = static_cast<T*>(args.y);
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t i = 0; i < args.width; i += kLanes) {
      const int64_t left = args.width - i;
      const Floats g = load(gate + r * args.in_stride + i, left);
      const Floats u = load(up + r * args.in_stride + i, left);
      store(y + r * args.width + i, g * sigmoid(g) * u, left);
    }
  }
}

template <typename T>
void swiglu_backward(const SwigluArgs& args, int64_t begin, int64_t end) {
  const auto* gate = static_cast<const T*>(args.gate);
  const auto* up = static_cast<const T*>(args.up);
  const auto* dy = static_cast<const T*>(args.dy);
  auto* dgate = static_cast<T*>(args.dgate);
  auto* dup = static_cast<T*>(args.dup);
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t i = 0; i < args.width; i += kLanes) {
      const int64_t left = args.width - i;
      const Floats g = load(gate + r * args.in_stride + i, left);
      const Floats u = load(up + r * args.in_stride + i, left);
      const Floats d = load(dy + r * args.width + i, left);
      const Floats s = sigmoid(g);
      store(dgate + r * args.in_stride + i, d * u * s * (1.0f + g * (1.0f - s)), left);
      store(dup + r * args.in_stride + i, d * g * s, left);
    }
  }
}

}  // namespace
