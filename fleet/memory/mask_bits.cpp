#include "fleet/memory/mask_bits.h"

#include <algorithm>

#include <ATen/Parallel.h>

namespace fleet::memory {
namespace {

constexpr int64_t kGrain = 4096;  // bytes of bits

// The one number beside 0 in a mask, as its bit pattern; 0 when there is none.
template <typename Word>
uint32_t first_pattern(const Word* words, int64_t n) {
  const auto* found = std::find_if(words, words + n, [](Word word) { return word != 0; });
  return found == words + n ? 0 : *found;
}

// False when a word is neither 0 nor `pattern`.
template <typename Word>
bool pack(const Word* words, int64_t n, Word pattern, uint8_t* bits) {
  std::atomic<bool> clean = true;
  at::parallel_for(0, (n + 7) / 8, kGrain, [&](int64_t begin, int64_t end) {
    uint32_t bad = 0;
    for (int64_t byte = begin; byte < end; ++byte) {
      const int64_t first = 8 * byte;
      const int count = static_cast<int>(std::min<int64_t>(8, n - first));
      uint32_t packed = 0;
      for (int j = 0; j < count; ++j) {
        const Word word = words[first + j];
        packed |= static_cast<uint32_t>(word != 0) << j;
        bad |= static_cast<uint32_t>((word != 0) & (word != pattern));
      }
      bits[byte] = static_cast<uint8_t>(packed);
    }
    if (bad) clean = false;
  });
  return clean;
}

template <typename Word>
void unpack(const uint8_t* bits, int64_t n, Word pattern, Word* words) {
  at::parallel_for(0, (n + 7) / 8, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t byte = begin; byte < end; ++byte) {
      const int64_t first = 8 * byte;
      const int count = static_cast<int>(std::min<int64_t>(8, n - first));
      const uint32_t packed = bits[byte];
      for (int j = 0; j < count; ++j) {
        words[first + j] = static_cast<Word>(-((packed >> j) & 1U)) & pattern;
      }
    }
  });
}

}  // namespace

std::optional<MaskBits> MaskBits::of(const torch::Tensor& mask) {
  const bool fits = (mask.is_cpu() || mask.is_meta()) && mask.is_contiguous() &&
                    mask.is_floating_point() && mask.element_size() <= 4;
  if (!fits || mask.element_size() == 1) return std::nullopt;
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
    clean = pack<uint32_t>(words, n, result.pattern_, bits);
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

}  // namespace fleet::memory
