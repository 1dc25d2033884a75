// SPDX-License-Identifier: Apache-2.0
// Packed files (fleet/data/formats/byte_source.h).

#include <algorithm>

#include "fleet/data/formats/byte_source.h"

#include "fuzz/scratch_file.h"

namespace fleet::fuzz {
namespace {

// All that comes out, asked for in pieces of `piece` bytes. `all` keeps its room for the next
// input: most of the time went into new pages.
void unpack(const std::filesystem::path& path, size_t piece, std::vector<uint8_t>& all) {
  const auto source = open_bytes(path);
  all.clear();
  while (true) {
    const size_t held = all.size();
    all.resize(held + piece);
    const auto got = source->read(all.data() + held, piece);
    require(got <= piece, "no more comes than was asked for");
    all.resize(held + got);
    require(all.size() <= source->most(), "no more comes than was announced");
    if (got < piece) return;
  }
}

void run(Bytes bytes) {
  static const ScratchFile file("input.gz");
  file.write(bytes);
  static std::vector<uint8_t> whole, pieces;
  const bool is_accepted = accepts([&] { unpack(file.path(), 1 << 16, whole); });
  require(accepts([&] { unpack(file.path(), 997, pieces); }) == is_accepted,
          "a file is damaged or not, however it is read");
  require(!is_accepted || pieces == whole, "it holds the same, however it is read");
}

const Target target("gzip", run);

}  // namespace
}  // namespace fleet::fuzz
