// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, several counters at once: each of a counter's four words is the lower half of a
// 64-bit lane, so that a round is two products, two shifts and four exclusive ors. What the upper
// halves hold does not matter until the end.

namespace {

using fleet::ops::RandomStream;

#if defined(__AVX512F__)
constexpr int kCounters = 8;
#elif defined(__AVX2__)
constexpr int kCounters = 4;
#else
constexpr int kCounters = 2;
#endif
constexpr int kGroups = 8 / kCounters;  // for the 64 elements of a block
typedef uint64_t Words __attribute__((vector_size(8 * kCounters)));
typedef uint16_t Quarters __attribute__((vector_size(8 * kCounters)));
typedef int16_t QuarterMask __attribute__((vector_size(8 * kCounters)));

FLEET_INLINE Words product_of_lower(Words a, Words b) {
#if defined(__AVX512F__)
  return (Words)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Words)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
  return (Words)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/// The numbers of a block, in the order of memory: `low` elements 0 to 31, `high` the others.
struct BlockBits {
  Words low[kGroups];
  Words high[kGroups];
};

alignas(64) constexpr uint64_t kSteps[8] = {0, 1, 2, 3, 4, 5, 6, 7};

FLEET_INLINE BlockBits bits_of_block(const RandomStream& stream, uint32_t sample, uint32_t block) {
  Words c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    __builtin_memcpy(&c0[g], kSteps + g * kCounters, sizeof(Words));
    c0[g] += block * 8;
    c1[g] = Words{} + sample;
    c2[g] = Words{} + stream.site;
    c3[g] = Words{} + stream.update;
  }
  const Words m0 = Words{} + 0xD2511F53u;
  const Words m1 = Words{} + 0xCD9E8D57u;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Words k0 = Words{} + stream.round_keys[2 * round];
    const Words k1 = Words{} + stream.round_keys[2 * round + 1];
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const Words p0 = product_of_lower(c0[g], m0);
      const Words p1 = product_of_lower(c2[g], m1);
      c0[g] = (p1 >> 32) ^ c1[g] ^ k0;
      c1[g] = p1;
      c2[g] = (p0 >> 32) ^ c3[g] ^ k1;
      c3[g] = p0;
    }
  }
  BlockBits bits;
  for (int g = 0; g < kGroups; ++g) {
    bits.low[g] = (c0[g] & 0xffffffffu) | (c1[g] << 32);
    bits.high[g] = (c2[g] & 0xffffffffu) | (c3[g] << 32);
  }
  return bits;
}

// Bit i: quarter i of the group is below the threshold.
FLEET_INLINE uint64_t below(Words bits, uint32_t threshold) {
#if defined(__AVX512F__)
  return _mm512_cmplt_epu16_mask((__m512i)bits, _mm512_set1_epi16(static_cast<short>(threshold)));
#else
  // Without comparisons of unsigned numbers: both are moved by half of the range.
  const Quarters moved = (Quarters)bits ^ 0x8000;
  const auto limit = static_cast<int16_t>(threshold ^ 0x8000u);
  const QuarterMask is_below = (QuarterMask)moved < limit;
#if defined(__AVX2__)
  // Two bytes per quarter; packing works in the halves of the register, and keeps their order.
  const __m128i packed = _mm_packs_epi16(_mm256_castsi256_si128((__m256i)is_below),
                                         _mm256_extracti128_si256((__m256i)is_below, 1));
  return static_cast<uint32_t>(_mm_movemask_epi8(packed));
#elif defined(__x86_64__)
  const __m128i packed = _mm_packs_epi16((__m128i)is_below, _mm_setzero_si128());
  return static_cast<uint32_t>(_mm_movemask_epi8(packed));
#else
  uint64_t mask = 0;
  for (int i = 0; i < 4 * kCounters; ++i) mask |= static_cast<uint64_t>(is_below[i] & 1) << i;
  return mask;
#endif
#endif
}

// Bit i: element i of the block is kept. For a threshold below 65536.
FLEET_INLINE uint64_t keep_word(const RandomStream& stream, uint32_t sample, uint32_t block) {
  const auto bits = bits_of_block(stream, sample, block);
  uint64_t word = 0;
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
    word |= below(bits.low[g], stream.threshold) << (4 * kCounters * g);
    word |= below(bits.high[g], stream.threshold) << (32 + 4 * kCounters * g);
  }
  return word;
}

/// The mask of consecutive elements of one sample, asked for in ascending steps of up to 64 that
/// need not begin with a block.
class KeepBits {
 public:
  FLEET_INLINE KeepBits(const RandomStream& stream, uint32_t sample, int64_t first)
      : stream_(stream),
        sample_(stream.first_sample + sample),
        block_(static_cast<uint32_t>(first / 64)),
        shift_(static_cast<int>(first % 64)) {
    if (shift_ > 0) word_ = keep_word(stream_, sample_, block_);
  }
  /// Of the next 64 elements.
  FLEET_INLINE uint64_t next() {
    if (shift_ == 0) return keep_word(stream_, sample_, block_++);
    const uint64_t following = keep_word(stream_, sample_, ++block_);
    const uint64_t word = (word_ >> shift_) | (following << (64 - shift_));
    word_ = following;
    return word;
  }

 private:
  const RandomStream& stream_;
  uint32_t sample_;
  uint32_t block_;
  int shift_;
  uint64_t word_ = 0;
};

/// Calls `work(i, keep, left)` for a row of `width` elements that begins with element `first` of its
/// sample: from i on, keep is 0 or the dropout's scale, and `left` elements are left, or kLanes
/// where there are more.
template <typename Work>
FLEET_INLINE void for_row(const RandomStream& stream, int64_t sample, int64_t first, int64_t width,
                          const Work& work) {
  int64_t i = 0;
  if (stream.drops()) {
    const Floats scale = splat(stream.scale);
    KeepBits bits(stream, static_cast<uint32_t>(sample), first);
    for (; i + 64 <= width; i += 64) {
      const uint64_t word = bits.next();
#pragma GCC unroll 16
      for (int64_t k = 0; k < 64; k += kLanes) {
        work(i + k, where(static_cast<uint32_t>(word >> k), scale), kLanes);
      }
    }
    if (i == width) return;
    const uint64_t word = bits.next();
    for (int64_t k = 0; i + k < width; k += kLanes) {
      work(i + k, where(static_cast<uint32_t>(word >> k), scale), width - i - k);
    }
  } else {
    for (; i + kLanes <= width; i += kLanes) work(i, splat(1.0f), kLanes);
    if (i < width) work(i, splat(1.0f), width - i);
  }
}

void random_bits(const RandomStream& stream, uint32_t sample, uint32_t block, uint16_t* out) {
  const auto bits = bits_of_block(stream, sample, block);
  __builtin_memcpy(out, bits.low, sizeof(bits.low));
  __builtin_memcpy(out + 32, bits.high, sizeof(bits.high));
}

void keep_bytes(const RandomStream& stream, uint32_t sample, int64_t first, int64_t count,
                uint8_t* out) {
  KeepBits bits(stream, sample, first);
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t word = stream.drops() ? bits.next() : ~uint64_t{0};
    for (int64_t k = 0; k < least(64, count - i); ++k) out[i + k] = (word >> k) & 1;
  }
}

}  // namespace
