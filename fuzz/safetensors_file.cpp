// SPDX-License-Identifier: Apache-2.0
// Whole safetensors files: what is accepted can be written again and is the same.

#include <cstring>

#include "fleet/io/safetensors.h"

#include "fuzz/scratch_file.h"

namespace fleet::fuzz {
namespace {

std::vector<NamedTensor> tensors_of(const SafetensorsFile& file, int64_t file_bytes) {
  std::vector<NamedTensor> tensors;
  for (const auto& entry : file.entries()) {
    require(entry.begin >= 8 && entry.begin + entry.bytes <= file_bytes, "data lie in the file");
    require(file.find(entry.name) == &entry, "entries are found by name");
    tensors.push_back({entry.name, file.read(entry)});
    require(static_cast<int64_t>(tensors.back().tensor.nbytes()) == entry.bytes,
            "a tensor is as large as its entry");
  }
  return tensors;
}

void run(Bytes bytes) {
  static const ScratchFile input("input.safetensors");
  input.write(bytes);
  std::vector<NamedTensor> tensors;
  SafetensorsMetadata metadata;
  if (!accepts([&] {
        const SafetensorsFile file(input.path());
        metadata = file.metadata();
        tensors = tensors_of(file, std::ssize(bytes));
      }))
    return;
  const auto copy = scratch_folder() / "copy.safetensors";
  write_safetensors(copy, tensors, metadata);
  const SafetensorsFile again(copy);
  require(again.entries().size() == tensors.size() && again.metadata() == metadata,
          "written again it has the same tensors and metadata");
  for (const auto& [name, tensor] : tensors) {
    const auto same = again.read(again.at(name));
    require(same.scalar_type() == tensor.scalar_type() && same.sizes() == tensor.sizes() &&
                (tensor.nbytes() == 0 ||
                 std::memcmp(same.const_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()) == 0),
            "written again a tensor is the same");
  }
}

const Target target("safetensors_file", run);

}  // namespace
}  // namespace fleet::fuzz
