// SPDX-License-Identifier: Apache-2.0
// x times 1 / (1 - p) or times 0: a NaN that is dropped stays one, as with LibTorch.

namespace {

using fleet::ops::DropoutArgs;

template <typename T>
void dropout(const DropoutArgs& args, int64_t begin, int64_t end) {
  const RandomStream stream = *args.stream;
  const Floats scale = splat(stream.scale);
  const int64_t blocks = (args.sample_size + 63) / 64;  // of one sample
  for (int64_t b = begin; b < end; ++b) {
    const int64_t sample = b / blocks, block = b % blocks;
    const uint64_t word = keep_word(stream, stream.first_sample + static_cast<uint32_t>(sample),
                                    static_cast<uint32_t>(block));
    const int64_t first = sample * args.sample_size + block * 64;
    const int64_t count = least(64, args.sample_size - block * 64);
    const T* x = static_cast<const T*>(args.x) + first;
    T* y = static_cast<T*>(args.y) + first;
    if (count == 64) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < 64; i += kLanes) {
        store(y + i, load(x + i) * where(static_cast<uint32_t>(word >> i), scale));
      }
    } else {
      for (int64_t i = 0; i < count; i += kLanes) {
        store(y + i, load(x + i, count - i) * where(static_cast<uint32_t>(word >> i), scale),
              count - i);
      }
    }
  }
}

}  // namespace
