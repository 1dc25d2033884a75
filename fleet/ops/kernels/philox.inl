// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, several counters at once: each of a counter's four words is the lower half of a
// 64-bit lane, so that a round is two products, two shifts and four exclusive ors. What the upper
// halves hold does not matter until the end. Counters of a sample differ in their first word alone,
// so that half of the first two rounds is the same for all. A round waits for the one before it:
// two blocks at a time hide that.

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

// Of each lane the lower half of a, then that of b.
FLEET_INLINE Words lower_halves(Words a, Words b) {
#if defined(__AVX512F__)
  return (Words)_mm512_mask_shuffle_epi32((__m512i)a, 0xaaaa, (__m512i)b, _MM_PERM_CCAA);
#else
  return (a & 0xffffffffu) | (b << 32);
#endif
}

/// The numbers of a block, in the order of memory: `low` elements 0 to 31, `high` the others.
struct BlockBits {
  Words low[kGroups];
  Words high[kGroups];
};

alignas(64) constexpr uint64_t kSteps[8] = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr uint64_t kFactor0 = 0xD2511F53u, kFactor1 = 0xCD9E8D57u;

template <int Blocks>
FLEET_INLINE void bits_of_blocks(const RandomStream& stream, uint32_t sample,
                                 const uint32_t (&blocks)[Blocks], BlockBits (&bits)[Blocks]) {
  constexpr int kAll = Blocks * kGroups;
  const Words m0 = Words{} + kFactor0;
  const Words m1 = Words{} + kFactor1;
  const uint64_t* const keys = stream.round_keys;
  // The first two rounds, of whose four products two are the same for all counters.
  const uint64_t first = stream.site * kFactor1;
  const auto first_low = static_cast<uint32_t>(first);
  const uint64_t second =
      static_cast<uint32_t>((first >> 32) ^ sample ^ keys[0]) * kFactor0;
  Words c0[kAll], c1[kAll], c2[kAll], c3[kAll];
#pragma GCC unroll 8
  for (int g = 0; g < kAll; ++g) {
    Words counter;
    __builtin_memcpy(&counter, kSteps + g % kGroups * kCounters, sizeof(Words));
    const Words p0 = product_of_lower(counter + blocks[g / kGroups] * 8, m0);
    const Words p1 = product_of_lower((p0 >> 32) ^ (stream.update ^ keys[1]), m1);
    c0[g] = (p1 >> 32) ^ (first_low ^ keys[2]);
    c1[g] = p1;
    c2[g] = p0 ^ ((second >> 32) ^ keys[3]);
    c3[g] = Words{} + (second & 0xffffffffu);
  }
#pragma GCC unroll 8
  for (int round = 2; round < 10; ++round) {
    const Words k0 = Words{} + keys[2 * round];
    const Words k1 = Words{} + keys[2 * round + 1];
#pragma GCC unroll 8
    for (int g = 0; g < kAll; ++g) {
      const Words p0 = product_of_lower(c0[g], m0);
      const Words p1 = product_of_lower(c2[g], m1);
      c0[g] = (p1 >> 32) ^ (c1[g] ^ k0);
      c1[g] = p1;
      c2[g] = (p0 >> 32) ^ (c3[g] ^ k1);
      c3[g] = p0;
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < kAll; ++g) {
    auto& block = bits[g / kGroups];
    block.low[g % kGroups] = lower_halves(c0[g], c1[g]);
    block.high[g % kGroups] = lower_halves(c2[g], c3[g]);
  }
}

FLEET_INLINE BlockBits bits_of_block(const RandomStream& stream, uint32_t sample, uint32_t block) {
  BlockBits bits[1];
  bits_of_blocks<1>(stream, sample, {block}, bits);
  return bits[0];
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

/// Which elements of a block are kept, for a threshold below 65536, as the registers want it.
struct KeepMask {
#if defined(__AVX2__) && !defined(__AVX512F__)
  alignas(32) QuarterMask parts[4];  // 16 elements each
#else
  uint64_t word;
#endif
};

// x where elements from kLanes * place on are kept, else 0.
FLEET_INLINE Floats where(const KeepMask& mask, int64_t place, Floats x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto part = (__m256i)mask.parts[place / 2];
  const __m128i half =
      place % 2 == 0 ? _mm256_castsi256_si128(part) : _mm256_extracti128_si256(part, 1);
  return (Floats)((Ints)_mm256_cvtepi16_epi32(half) & (Ints)x);
#else
  return where(static_cast<uint32_t>(mask.word >> (place * kLanes)), x);
#endif
}

FLEET_INLINE KeepMask keep_mask_of(const BlockBits& bits, uint32_t threshold) {
  KeepMask mask;
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto limit = static_cast<int16_t>(threshold ^ 0x8000u);
#pragma GCC unroll 2
  for (int g = 0; g < kGroups; ++g) {
    mask.parts[g] = (QuarterMask)((Quarters)bits.low[g] ^ 0x8000) < limit;
    mask.parts[kGroups + g] = (QuarterMask)((Quarters)bits.high[g] ^ 0x8000) < limit;
  }
#else
  mask.word = 0;
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
    mask.word |= below(bits.low[g], threshold) << (4 * kCounters * g);
    mask.word |= below(bits.high[g], threshold) << (32 + 4 * kCounters * g);
  }
#endif
  return mask;
}

FLEET_INLINE KeepMask keep_mask(const RandomStream& stream, uint32_t sample, uint32_t block) {
  return keep_mask_of(bits_of_block(stream, sample, block), stream.threshold);
}

/// Of two blocks.
FLEET_INLINE void keep_masks(const RandomStream& stream, uint32_t sample, uint32_t one,
                             uint32_t other, KeepMask* masks) {
  BlockBits bits[2];
  bits_of_blocks<2>(stream, sample, {one, other}, bits);
  masks[0] = keep_mask_of(bits[0], stream.threshold);
  masks[1] = keep_mask_of(bits[1], stream.threshold);
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
    if (first % 64 == 0) {  // rows that begin with a block
      const uint32_t number = stream.first_sample + static_cast<uint32_t>(sample);
      auto block = static_cast<uint32_t>(first / 64);
      for (; i + 128 <= width; i += 128, block += 2) {
        KeepMask masks[2];
        keep_masks(stream, number, block, block + 1, masks);
#pragma GCC unroll 32
        for (int64_t k = 0; k < 128; k += kLanes) {
          work(i + k, where(masks[k / 64], k % 64 / kLanes, scale), kLanes);
        }
      }
      if (i == width) return;
    }
    KeepBits bits(stream, static_cast<uint32_t>(sample), first + i);
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
