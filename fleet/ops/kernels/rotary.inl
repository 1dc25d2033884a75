// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (Su et al., arXiv 2104.09864), pairs half a head apart. The reverse is
// the rotation by the negative angle.

namespace {

using fleet::ops::RotaryArgs;

// Rows are positions of samples.
template <typename T>
void rotary(const RotaryArgs& args, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t sample = r / args.length, position = r % args.length;
    const T* row = static_cast<const T*>(args.x) + sample * args.sample_stride +
                   position * args.row_stride;
    T* to_row = static_cast<T*>(args.y) + r * args.heads * 2 * args.half;
    const float* cos = args.cos + position * args.half;
    const float* sin = args.sin + position * args.half;
    for (int64_t h = 0; h < args.heads; ++h) {
      const T* x = row + h * args.head_stride;
      T* y = to_row + h * 2 * args.half;
      for (int64_t i = 0; i < args.half; i += kLanes) {
        const int64_t left = args.half - i;
        const Floats a = load(x + i, left), b = load(x + args.half + i, left);
        const Floats c = load(cos + i, left);
        const Floats s = args.reverse ? negative(load(sin + i, left)) : load(sin + i, left);
        store(y + i, a * c - b * s, left);
        store(y + args.half + i, b * c + a * s, left);
      }
    }
  }
}

}  // namespace
