// SPDX-License-Identifier: Apache-2.0
// Softmax cross entropy of rows of logits (plus a bias). Three passes over a row, which is in the
// cache from the first on: largest, sum of exponentials, gradient. In float the second one writes
// the exponentials to where the gradient goes.

namespace {

using fleet::ops::CrossEntropyArgs;

template <typename T>
void cross_entropy(const CrossEntropyArgs& args, int64_t begin, int64_t end) {
  const int64_t classes = args.classes;
  const int64_t whole = classes / kLanes * kLanes;
  const auto n = static_cast<float>(classes);
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(args.logits) + r * args.row_stride;
    T* const out = args.out ? static_cast<T*>(args.out) + r * args.row_stride : nullptr;
    const int64_t label = args.labels[r];
    if (label == args.ignore_index) {
      args.losses[r] = 0;
      if (args.gradient) {
        for (int64_t i = 0; i < classes; ++i) put(out + i, 0.0f);
      }
      continue;
    }
    if (args.bias) {
      for (int64_t i = 0; i < classes; i += kLanes) {
        const int64_t left = classes - i;
        store(out + i, load(x + i, left) + load(args.bias + i, left), left);
      }
      x = out;
    }
    Floats most[2] = {splat(-__builtin_inff()), splat(-__builtin_inff())};
    Floats sum[2] = {};
    int64_t i = 0;
    for (; i + 2 * kLanes <= whole; i += 2 * kLanes) {
      const Floats a = load(x + i), b = load(x + i + kLanes);
      most[0] = larger(most[0], a);
      most[1] = larger(most[1], b);
      sum[0] += a;
      sum[1] += b;
    }
    float largest = largest_of(larger(most[0], most[1]));
    float logit_sum = sum_of(sum[0] + sum[1]);
    for (; i < classes; ++i) {
      const float value = get(x + i);
      largest = value > largest ? value : largest;
      logit_sum += value;
    }
    const float largest2 = largest * kLog2e;
    const float chosen = get(x + label);
    // Float has room for the exponentials, which are then not computed twice.
    const bool keeps = args.gradient && sizeof(T) == sizeof(float);
    Floats exponentials[2] = {};
    i = 0;
    if (keeps) {
      for (; i + 2 * kLanes <= whole; i += 2 * kLanes) {
        const Floats a = exp2_of(load(x + i) * kLog2e - largest2);
        const Floats b = exp2_of(load(x + i + kLanes) * kLog2e - largest2);
        exponentials[0] += a;
        exponentials[1] += b;
        store(out + i, a);
        store(out + i + kLanes, b);
      }
    } else {
      for (; i + 2 * kLanes <= whole; i += 2 * kLanes) {
        exponentials[0] += exp2_of(load(x + i) * kLog2e - largest2);
        exponentials[1] += exp2_of(load(x + i + kLanes) * kLog2e - largest2);
      }
    }
    float total = sum_of(exponentials[0] + exponentials[1]);
    for (; i < classes; ++i) {
      const float exponential = __builtin_expf(get(x + i) - largest);
      total += exponential;
      if (keeps) put(out + i, exponential);
    }
    const float lse = largest + __builtin_logf(total);
    args.losses[r] = lse - chosen;
    if (args.smoothing > 0) {  // not always: a logit may be infinite
      args.losses[r] += args.smoothing * (chosen - logit_sum / n);
    }
    if (!args.gradient) continue;
    const float even = args.smoothing / n * args.scale;
    const float factor = args.scale / total;
    const float lse2 = lse * kLog2e;
    i = 0;
    if (keeps) {
      for (; i + kLanes <= whole; i += kLanes) store(out + i, load(out + i) * factor - even);
      for (; i < classes; ++i) put(out + i, get(out + i) * factor - even);
    } else {
      for (; i + kLanes <= whole; i += kLanes) {
        store(out + i, exp2_of(load(x + i) * kLog2e - lse2) * args.scale - even);
      }
      for (; i < classes; ++i) put(out + i, __builtin_expf(get(x + i) - lse) * args.scale - even);
    }
    const float probability = __builtin_expf(chosen - lse);
    put(out + label, (probability - (1.0f - args.smoothing)) * args.scale - even);
  }
}

}  // namespace
