// SPDX-License-Identifier: Apache-2.0
// x times 1 / (1 - p) or times 0: a NaN that is dropped stays one, as with LibTorch.

namespace {

using fleet::ops::DropoutArgs;

template <typename T>
FLEET_INLINE void drop_block(const T* x, T* y, const KeepMask& mask, Floats scale) {
#pragma GCC unroll 16
  for (int64_t i = 0; i < 64; i += kLanes) {
    store(y + i, load(x + i) * where(mask, i / kLanes, scale));
  }
}

template <typename T>
void dropout(const DropoutArgs& args, int64_t begin, int64_t end) {
  const RandomStream stream = *args.stream;
  const Floats scale = splat(stream.scale);
  const int64_t blocks = (args.sample_size + 63) / 64;  // of one sample
  const int64_t complete = args.sample_size / 64;
  for (int64_t b = begin; b < end;) {
    const int64_t sample = b / blocks, block = b % blocks;
    const uint32_t number = stream.first_sample + static_cast<uint32_t>(sample);
    const int64_t first = sample * args.sample_size + block * 64;
    const T* x = static_cast<const T*>(args.x) + first;
    T* y = static_cast<T*>(args.y) + first;
    if (block + 2 <= complete && b + 2 <= end) {
      KeepMask masks[2];
      keep_masks(stream, number, static_cast<uint32_t>(block), static_cast<uint32_t>(block) + 1,
                 masks);
      drop_block(x, y, masks[0], scale);
      drop_block(x + 64, y + 64, masks[1], scale);
      b += 2;
      continue;
    }
    const auto mask = keep_mask(stream, number, static_cast<uint32_t>(block));
    if (block < complete) {
      drop_block(x, y, mask, scale);
    } else {
      const int64_t count = args.sample_size - block * 64;
#pragma GCC unroll 16
      for (int64_t i = 0; i < 64; i += kLanes) {
        if (i >= count) break;
        store(y + i, load(x + i, count - i) * where(mask, i / kLanes, scale), count - i);
      }
    }
    ++b;
  }
}

}  // namespace
