// SPDX-License-Identifier: Apache-2.0
// Batch norm, an addition and ReLU over rows of channels (channels-last), in float. The ReLU's mask
// is not kept: backward computes the sign again from what batch norm read.

namespace {

using fleet::ops::BatchNormArgs;

constexpr int64_t kRowsAtOnce = 16;  // whose sums stay in registers

// Sums of x - mean and of its square; `mean` is near the true one, so that little cancels.
void channel_sums(const BatchNormArgs& args, float* sum, float* square, int64_t begin,
                  int64_t end) {
  const auto* x = static_cast<const float*>(args.x);
  const int64_t channels = args.channels;
  for (int64_t r = begin; r < end; r += kRowsAtOnce) {
    const int64_t stop = least(end, r + kRowsAtOnce);
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t left = channels - c;
      const Floats mean = load(args.mean + c, left);
      Floats a = {}, b = {};
      for (int64_t i = r; i < stop; ++i) {
        const Floats d = load(x + i * channels + c, left) - mean;
        a += d;
        b += d * d;
      }
      store(sum + c, load(sum + c, left) + a, left);
      store(square + c, load(square + c, left) + b, left);
    }
  }
}

FLEET_INLINE Floats before_relu(const BatchNormArgs& args, Floats x, int64_t row, int64_t c,
                                int64_t left) {
  Floats value = x * load(args.scale + c, left) + load(args.shift + c, left);
  if (args.residual) {
    value += load(static_cast<const float*>(args.residual) + row * args.channels + c, left);
  }
  return value;
}

void batch_norm(const BatchNormArgs& args, int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(args.x);
  auto* y = static_cast<float*>(args.y);
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t c = 0; c < args.channels; c += kLanes) {
      const int64_t left = args.channels - c;
      Floats value = before_relu(args, load(x + r * args.channels + c, left), r, c, left);
      if (args.relu) value = larger(Floats{}, value);  // a NaN stays one
      store(y + r * args.channels + c, value, left);
    }
  }
}

FLEET_INLINE Floats through_relu(const BatchNormArgs& args, Floats x, int64_t row, int64_t c,
                                 int64_t left) {
  const auto* dy = static_cast<const float*>(args.dy);
  const Floats d = load(dy + row * args.channels + c, left);
  if (!args.relu) return d;
  return choose(before_relu(args, x, row, c, left) <= 0.0f, Floats{}, d);
}

// Sums of g and of g (x - mean).
void batch_norm_sums(const BatchNormArgs& args, float* sum, float* product, int64_t begin,
                     int64_t end) {
  const auto* x = static_cast<const float*>(args.x);
  const int64_t channels = args.channels;
  for (int64_t r = begin; r < end; r += kRowsAtOnce) {
    const int64_t stop = least(end, r + kRowsAtOnce);
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t left = channels - c;
      const Floats mean = load(args.mean + c, left);
      Floats a = {}, b = {};
      for (int64_t i = r; i < stop; ++i) {
        const Floats value = load(x + i * channels + c, left);
        const Floats g = through_relu(args, value, i, c, left);
        a += g;
        b += g * (value - mean);
      }
      store(sum + c, load(sum + c, left) + a, left);
      store(product + c, load(product + c, left) + b, left);
    }
  }
}

void batch_norm_backward(const BatchNormArgs& args, int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(args.x);
  auto* dx = static_cast<float*>(args.dx);
  auto* dresidual = static_cast<float*>(args.dresidual);
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t c = 0; c < args.channels; c += kLanes) {
      const int64_t left = args.channels - c;
      const int64_t place = r * args.channels + c;
      const Floats value = load(x + place, left);
      const Floats g = through_relu(args, value, r, c, left);
      if (dresidual) store(dresidual + place, g, left);
      const Floats centred = value - load(args.mean + c, left);
      const Floats d = g - load(args.mean_g + c, left) - centred * load(args.slope + c, left);
      store(dx + place, d * load(args.scale + c, left), left);
    }
  }
}

}  // namespace
