// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/formats/idx_file.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/formats/byte_source.h"

namespace fleet {
namespace {

constexpr uint8_t kUnsignedByte = 0x08;
constexpr uint64_t kChunk = 64 << 10;
constexpr size_t kMaxDimensions = 64;  // that LibTorch's loops take

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw UsageError("data", format("{}: {}", path.string(), what),
                   "fetch the file again; it is damaged or not what its name says");
}

// Magic {0, 0, type, rank}, then `rank` sizes as big-endian 32-bit numbers.
std::vector<int64_t> read_shape(ByteSource& source, const std::filesystem::path& path) {
  std::array<uint8_t, 4> word;
  if (source.read(word.data(), 4) < 4) refuse(path, "truncated: no room for the IDX header");
  if (word[0] != 0 || word[1] != 0) {
    refuse(path, format("not an IDX file: it starts with {:02x} {:02x} {:02x} {:02x}", word[0],
                        word[1], word[2], word[3]));
  }
  if (word[2] != kUnsignedByte) {
    refuse(path,
           format("IDX element type 0x{:02x}, where 0x08 (unsigned byte) is needed", word[2]));
  }
  std::vector<int64_t> shape(word[3]);
  if (shape.empty()) refuse(path, "an IDX header without dimensions");
  if (shape.size() > kMaxDimensions) {
    refuse(path, format("an IDX header of {} dimensions, more than the {} of a tensor",
                        shape.size(), kMaxDimensions));
  }
  for (auto& size : shape) {
    if (source.read(word.data(), 4) < 4) refuse(path, "truncated: the IDX header is not complete");
    size = int64_t{word[0]} << 24 | word[1] << 16 | word[2] << 8 | word[3];
  }
  return shape;
}

}  // namespace

torch::Tensor read_idx_file(const std::filesystem::path& path) {
  const auto source = open_bytes(path);
  const auto shape = read_shape(*source, path);
  // An empty tensor may not lie about its other sizes either: strides are made of them.
  int64_t most = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(most, std::max<int64_t>(size, 1), &most)) {
      refuse(path, "the header promises more bytes than a 64-bit number counts");
    }
  }
  const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  const uint64_t promised = is_empty ? 0 : static_cast<uint64_t>(most);
  if (promised > source->most()) {
    refuse(path, format("the header promises {} bytes, more than the file can hold", promised));
  }

  auto bytes = std::make_unique<std::vector<uint8_t>>();
  uint64_t held = 0;
  while (held < promised) {
    bytes->resize(std::min(promised, std::max(kChunk, 2 * held)));
    held += source->read(bytes->data() + held, bytes->size() - held);
    if (held < bytes->size()) {
      refuse(path, format("truncated: the header promises {} bytes, {} are there", promised, held));
    }
  }
  if (uint8_t extra; source->read(&extra, 1) == 1) {
    refuse(path, format("there are more bytes than the {} of the header", promised));
  }
  auto* data = bytes->data();
  return torch::from_blob(
      data, shape, [owner = bytes.release()](void*) { delete owner; }, torch::kUInt8);
}

}  // namespace fleet
