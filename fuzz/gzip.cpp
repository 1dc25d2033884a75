// SPDX-License-Identifier: Apache-2.0
// Packed files (fleet/data/formats/byte_source.h).

#include <algorithm>

#include "fleet/data/formats/byte_source.h"

#include "fuzz/scratch_file.h"

namespace fleet::fuzz {
namespace {

// All that comes out, asked for in pieces of `piece` bytes.
std::vector<uint8_t> unpacked(const std::filesystem::path& path, size_t piece) {
  const auto source = open_bytes(path);
  std::vector<uint8_t> all;
  while (true) {
    const size_t held = all.size();
    all.resize(held + piece);
    const auto got = source->read(all.data() + held, piece);
    require(got <= piece, "no more comes than was asked for");
    all.resize(held + got);
    require(all.size() <= source->most(), "no more comes than was announced");
    if (got < piece) return all;
  }
}

void run(Bytes bytes) {
  static const ScratchFile file("input.gz");
  file.write(bytes);
  std::vector<uint8_t> whole;
  const bool is_accepted = accepts([&] { whole = unpacked(file.path(), 1 << 16); });
  std::vector<uint8_t> pieces;
  require(accepts([&] { pieces = unpacked(file.path(), 997); }) == is_accepted,
          "a file is damaged or not, however it is read");
  require(pieces == whole, "it holds the same, however it is read");
}

const Target target("gzip", run);

}  // namespace
}  // namespace fleet::fuzz
