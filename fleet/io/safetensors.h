// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "fleet/core/model_handle.h"
#include "fleet/core/process/descriptor.h"

namespace fleet {

/// One tensor of a file: what the header says of it, already checked.
struct SafetensorsEntry {
  std::string name;
  torch::ScalarType dtype = torch::kFloat;
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< of its data, counted from the start of the file
  int64_t bytes = 0;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

/// A safetensors file, opened for reading. Opening reads the header alone; each tensor is read
/// on demand.
///
/// Strict: every offset lies in the file, no two tensors overlap, no byte belongs to none, sizes
/// agree with types and shapes, and no name comes twice. Memory follows what the file really holds.
/// Every failure is a `fleet::Error` that names the file and the entry. Data are read, not mapped:
/// a file that another process cuts short is then an error too, and no bus error.
///
///   SafetensorsFile file("model.safetensors");
///   for (const auto& entry : file.entries()) std::cout << entry.name << '\n';
///   torch::Tensor bias = file.read(file.at("fc.bias"));
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// In the order of their data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }

  /// Null when there is no such entry.
  const SafetensorsEntry* find(std::string_view name) const;
  const SafetensorsEntry& at(std::string_view name) const;

  torch::Tensor read(const SafetensorsEntry& entry) const;

  /// Into a tensor of the same shape and any type and device; without a copy in between where the
  /// file's bytes can go straight to their place.
  void read_into(const SafetensorsEntry& entry, const torch::Tensor& target) const;

 private:
  void read_bytes(const SafetensorsEntry& entry, void* out) const;

  std::filesystem::path path_;
  Descriptor file_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string_view, const SafetensorsEntry*> by_name_;
  SafetensorsMetadata metadata_;
};

/// A tensor to be written, made only when its turn comes.
struct SafetensorsItem {
  std::string name;
  torch::ScalarType dtype = torch::kFloat;
  std::vector<int64_t> shape;
  std::function<torch::Tensor()> make;
};

/// Writes beside `path`, syncs, and renames: a reader of `path` sees the old file or the complete
/// new one. The bytes are those that the reference library writes for the same tensors. Returns the
/// XXH64 of the file.
uint64_t write_safetensors(const std::filesystem::path& path,
                           const std::vector<SafetensorsItem>& items,
                           const SafetensorsMetadata& metadata = {});
uint64_t write_safetensors(const std::filesystem::path& path,
                           const std::vector<NamedTensor>& tensors,
                           const SafetensorsMetadata& metadata = {});

/// "3 x 4", for messages.
std::string shape_text(at::IntArrayRef shape);

/// "F32"; empty for a type that the format or Fleet does not have.
std::string_view safetensors_type_name(torch::ScalarType dtype);

}  // namespace fleet
