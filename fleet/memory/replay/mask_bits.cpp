// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/replay/mask_bits.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <limits>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "fleet/core/error.h"
#include "fleet/core/parallel_chunks.h"
#include "fleet/core/seconds_since.h"

namespace fleet::memory {
namespace {

constexpr int64_t kChunkBytes = 4096;  // of bits; less is not worth a thread

// The one number beside 0 in a mask, as its bit pattern; 0 if there is none.
template <typename Word>
Word first_pattern(const Word* words, int64_t n) {
  const auto* found = std::find_if(words, words + n, [](Word word) { return word != 0; });
  return found == words + n ? Word{0} : *found;
}

// Up to eight words. `strange` gets a bit if a word is neither 0 nor `pattern`.
template <typename Word>
uint8_t pack_few(const Word* words, int64_t count, Word pattern, int& strange) {
  int packed = 0;
  for (int j = 0; j < count; ++j) {
    packed |= static_cast<int>(words[j] != 0) << j;
    strange |= static_cast<int>((words[j] != 0) & (words[j] != pattern));
  }
  return static_cast<uint8_t>(packed);
}

template <typename Word>
void unpack_few(uint8_t packed, int64_t count, Word pattern, Word* words) {
  for (int j = 0; j < count; ++j) words[j] = (packed >> j & 1) != 0 ? pattern : Word{0};
}

#ifdef __SSE2__
// Eight words at once, since masks are as large as the tensors they are for.
__m128i load(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
void store(void* at, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(at), value); }

uint8_t pack_eight(const uint32_t* words, uint32_t pattern, int& strange) {
  const auto zero = _mm_setzero_si128(), one = _mm_set1_epi32(static_cast<int>(pattern));
  const auto low = load(words), high = load(words + 4);
  const auto zeros = _mm_packs_epi32(_mm_cmpeq_epi32(low, zero), _mm_cmpeq_epi32(high, zero));
  const auto ones = _mm_packs_epi32(_mm_cmpeq_epi32(low, one), _mm_cmpeq_epi32(high, one));
  strange |= ~_mm_movemask_epi8(_mm_or_si128(zeros, ones)) & 0xFFFF;
  return static_cast<uint8_t>(~_mm_movemask_epi8(_mm_packs_epi16(zeros, zero)));
}
uint8_t pack_eight(const uint16_t* words, uint16_t pattern, int& strange) {
  const auto zero = _mm_setzero_si128(), one = _mm_set1_epi16(static_cast<int16_t>(pattern));
  const auto zeros = _mm_cmpeq_epi16(load(words), zero);
  strange |= ~_mm_movemask_epi8(_mm_or_si128(zeros, _mm_cmpeq_epi16(load(words), one))) & 0xFFFF;
  return static_cast<uint8_t>(~_mm_movemask_epi8(_mm_packs_epi16(zeros, zero)));
}
void unpack_eight(uint8_t packed, uint32_t pattern, uint32_t* words) {
  const auto all = _mm_set1_epi32(packed), one = _mm_set1_epi32(static_cast<int>(pattern));
  const auto low = _mm_setr_epi32(1, 2, 4, 8), high = _mm_setr_epi32(16, 32, 64, 128);
  store(words, _mm_and_si128(_mm_cmpeq_epi32(_mm_and_si128(all, low), low), one));
  store(words + 4, _mm_and_si128(_mm_cmpeq_epi32(_mm_and_si128(all, high), high), one));
}
void unpack_eight(uint8_t packed, uint16_t pattern, uint16_t* words) {
  const auto all = _mm_set1_epi16(packed), one = _mm_set1_epi16(static_cast<int16_t>(pattern));
  const auto bit = _mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128);
  store(words, _mm_and_si128(_mm_cmpeq_epi16(_mm_and_si128(all, bit), bit), one));
}
#else
template <typename Word>
uint8_t pack_eight(const Word* words, Word pattern, int& strange) {
  return pack_few(words, 8, pattern, strange);
}
template <typename Word>
void unpack_eight(uint8_t packed, Word pattern, Word* words) {
  unpack_few(packed, 8, pattern, words);
}
#endif

// False if a word is neither 0 nor `pattern`.
template <typename Word>
bool pack(const Word* words, int64_t n, Word pattern, uint8_t* bits) {
  std::atomic<int> all_strange = 0;
  parallel_ranges(n / 8, kChunkBytes, [&](int64_t begin, int64_t end) {
    int strange = 0;
    for (int64_t i = begin; i < end; ++i) bits[i] = pack_eight(words + 8 * i, pattern, strange);
    all_strange |= strange;
  });
  int strange = all_strange;
  if (n % 8 != 0) bits[n / 8] = pack_few(words + n / 8 * 8, n % 8, pattern, strange);
  return strange == 0;
}

template <typename Word>
void unpack(const uint8_t* bits, int64_t n, Word pattern, Word* words) {
  parallel_ranges(n / 8, kChunkBytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) unpack_eight(bits[i], pattern, words + 8 * i);
  });
  if (n % 8 != 0) unpack_few(bits[n / 8], n % 8, pattern, words + n / 8 * 8);
}

}  // namespace

bool MaskBits::can_hold(const torch::Tensor& mask) {
  const auto size = mask.element_size();
  return (mask.is_cpu() || mask.is_meta()) && mask.is_contiguous() && mask.is_floating_point() &&
         (size == 2 || size == 4);
}

std::optional<MaskBits> MaskBits::of(const torch::Tensor& mask) {
  if (!can_hold(mask)) return std::nullopt;
  MaskBits result;
  result.sizes_ = mask.sizes().vec();
  result.options_ = mask.options();
  const auto n = mask.numel();
  result.bits_ = torch::empty({(n + 7) / 8}, mask.options().dtype(torch::kByte));
  if (mask.is_meta()) return result;
  auto* const bits = result.bits_.data_ptr<uint8_t>();
  const auto* const data = mask.const_data_ptr();
  bool clean = false;
  if (mask.element_size() == 4) {
    const auto* words = static_cast<const uint32_t*>(data);
    result.pattern_ = first_pattern(words, n);
    clean = pack(words, n, result.pattern_, bits);
  } else {
    const auto* words = static_cast<const uint16_t*>(data);
    result.pattern_ = first_pattern(words, n);
    clean = pack<uint16_t>(words, n, static_cast<uint16_t>(result.pattern_), bits);
  }
  return clean ? std::optional(std::move(result)) : std::nullopt;
}

torch::Tensor MaskBits::mask() const {
  auto mask = torch::empty(sizes_, options_);
  if (mask.is_meta()) return mask;
  const auto* const bits = bits_.const_data_ptr<uint8_t>();
  if (mask.element_size() == 4) {
    unpack<uint32_t>(bits, mask.numel(), pattern_, static_cast<uint32_t*>(mask.data_ptr()));
  } else {
    unpack<uint16_t>(bits, mask.numel(), static_cast<uint16_t>(pattern_),
                     static_cast<uint16_t*>(mask.data_ptr()));
  }
  return mask;
}

double MaskBits::seconds_per_byte() {
  static const double seconds = [] {
    constexpr size_t kCount = size_t{64} << 10;
    // No tensors: these are not the program's bytes.
    const std::vector<uint8_t> bits(kCount / 8, 0x55);
    const std::vector<float> x(kCount, 1.5F);
    std::vector<uint32_t> mask(kCount);
    std::vector<float> result(kCount);
    double best = std::numeric_limits<double>::max();
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      unpack<uint32_t>(bits.data(), kCount, std::bit_cast<uint32_t>(1.25F), mask.data());
      for (size_t k = 0; k < kCount; ++k) result[k] = x[k] * std::bit_cast<float>(mask[k]);
      best = std::min(best, seconds_since(begin));
    }
    FLEET_ASSERT(result.back() == 0, "a mask's bits were not unpacked");
    return best / static_cast<double>(kCount * sizeof(float));
  }();
  return seconds;
}

}  // namespace fleet::memory
