// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/io/atomic_file.h"
#include "fleet/io/safetensors_header.h"

namespace fleet {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

constexpr size_t kChunk = size_t{1} << 30;  // the system takes no more at a time
constexpr int64_t kLengthBytes = 8;

std::string reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw UsageError("safetensors", format("{}: {}", path.string(), what),
                   "fetch or write the file again; it is damaged or not what its name says");
}

// False at a premature end.
bool read_fully(int file, void* out, int64_t count, int64_t at, const std::filesystem::path& path) {
  auto* next = static_cast<char*>(out);
  while (count > 0) {
    const auto got = pread(file, next, std::min(static_cast<size_t>(count), kChunk), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Error("safetensors", format("cannot read {}: {}", path.string(), reason(errno)),
                  "check the disk");
    }
    if (got == 0) return false;
    next += got;
    at += got;
    count -= got;
  }
  return true;
}

// Where the reference library puts a type: wider ones first, so that all stay aligned.
int rank_of(torch::ScalarType dtype) {
  static constexpr torch::ScalarType kOrder[] = {
      torch::kLong, torch::kDouble, torch::kFloat, torch::kInt,  torch::kBFloat16,
      torch::kHalf, torch::kShort,  torch::kChar,  torch::kByte, torch::kBool};
  return static_cast<int>(std::find(std::begin(kOrder), std::end(kOrder), dtype) - kOrder);
}

std::string json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error("safetensors", "a name or a note is not UTF-8, so no reader would take it",
                "rename the module or change the metadata");
  }
}

std::string header_text(const std::vector<const SafetensorsItem*>& items,
                        const SafetensorsMetadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) text += json_text(key) + ":" + json_text(value) + ",";
    text.back() = '}';
    text += ',';
  }
  int64_t end = 0;
  for (const auto* item : items) {
    const int64_t begin = end;
    const auto bytes = detail::tensor_bytes(item->dtype, item->shape);
    if (!bytes || __builtin_add_overflow(end, *bytes, &end)) {
      throw Error("safetensors", format("'{}' is too large to be written", item->name));
    }
    std::string shape;
    for (const int64_t size : item->shape) shape += format("{}{}", shape.empty() ? "" : ",", size);
    text += format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                   json_text(item->name), safetensors_type_name(item->dtype), shape, begin, end);
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (std::ssize(text) > detail::kMaxSafetensorsHeader) {
    throw Error("safetensors",
                format("a header of {} bytes, above the format's 100 MB", text.size()),
                "split the tensors over several files");
  }
  return text;
}

}  // namespace

std::string shape_text(at::IntArrayRef shape) {
  std::string text;
  for (const int64_t size : shape) text += format("{}{}", text.empty() ? "" : " x ", size);
  return text.empty() ? "one number" : text;
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: no waiting for a pipe's writer.
  file_ = Descriptor(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file_ || fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    const std::string why = !file_ ? reason(errno) : "not a regular file";
    throw UsageError("safetensors", format("cannot read {}: {}", path_.string(), why),
                     "check the path and its permissions");
  }
  uint64_t length = 0;
  if (status.st_size < kLengthBytes || !read_fully(file_.get(), &length, kLengthBytes, 0, path_)) {
    refuse(path_, "truncated: no room for the length of a header");
  }
  if (length > static_cast<uint64_t>(detail::kMaxSafetensorsHeader)) {
    refuse(path_, format("a header of {} bytes, above the format's 100 MB", length));
  }
  const int64_t rest = status.st_size - kLengthBytes;
  const auto header_bytes = static_cast<int64_t>(length);
  if (header_bytes > rest) {
    refuse(path_, format("truncated: a header of {} bytes, {} are there", length, rest));
  }
  std::string text(length, '\0');
  if (!read_fully(file_.get(), text.data(), header_bytes, kLengthBytes, path_)) {
    refuse(path_, "truncated while it was read");
  }
  auto header = detail::parse_safetensors_header(text, path_, kLengthBytes + header_bytes,
                                                 rest - header_bytes);
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  for (const auto& entry : entries_) by_name_.emplace(entry.name, &entry);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  if (const auto* entry = find(name)) return *entry;
  throw Error("safetensors", format("{} has no tensor '{}'", path_.string(), name),
              format("'fleet inspect {}' lists what it has", path_.string()));
}

void SafetensorsFile::read_bytes(const SafetensorsEntry& entry, void* out) const {
  if (!read_fully(file_.get(), out, entry.bytes, entry.begin, path_)) {
    refuse(path_, format("truncated since it was opened: '{}' is not complete", entry.name));
  }
  if (entry.dtype == torch::kBool) {
    const auto* bytes = static_cast<const uint8_t*>(out);
    if (std::any_of(bytes, bytes + entry.bytes, [](uint8_t byte) { return byte > 1; })) {
      std::memset(out, 0, static_cast<size_t>(entry.bytes));  // never left where a bool is expected
      refuse(path_, format("'{}' has bytes that are neither true nor false", entry.name));
    }
  }
}

torch::Tensor SafetensorsFile::read(const SafetensorsEntry& entry) const {
  auto tensor = torch::empty(entry.shape, entry.dtype);
  read_bytes(entry, tensor.data_ptr());
  return tensor;
}

void SafetensorsFile::read_into(const SafetensorsEntry& entry, const torch::Tensor& target) const {
  if (target.sizes() != at::IntArrayRef(entry.shape)) {
    throw Error("safetensors", format("'{}' of {} does not have the shape of its target",
                                      entry.name, path_.string()));
  }
  const torch::NoGradGuard no_grad;
  if (target.is_cpu() && target.is_contiguous() && target.scalar_type() == entry.dtype) {
    read_bytes(entry, target.data_ptr());
    if (!target.is_inference()) target.unsafeGetTensorImpl()->bump_version();  // as copy_ does
  } else {
    target.copy_(read(entry));
  }
}

uint64_t write_safetensors(const std::filesystem::path& path,
                           const std::vector<SafetensorsItem>& items,
                           const SafetensorsMetadata& metadata) {
  std::vector<std::string> problems;
  std::set<std::string_view> names;
  std::vector<const SafetensorsItem*> order;
  for (const auto& item : items) {
    if (!names.insert(item.name).second) problems.push_back(format("'{}' occurs twice", item.name));
    if (item.name == detail::kSafetensorsMetadata)
      problems.push_back(format("'{}' is the format's own name", item.name));
    if (safetensors_type_name(item.dtype).empty())
      problems.push_back(
          format("'{}' is {}, which is not written", item.name, c10::toString(item.dtype)));
    order.push_back(&item);
  }
  if (!problems.empty()) {
    throw Error::all("safetensors", format("{} cannot be written", path.string()), problems,
                     "rename or convert these tensors");
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(rank_of(a->dtype), std::string_view(a->name)) <
           std::pair(rank_of(b->dtype), std::string_view(b->name));
  });
  const auto header = header_text(order, metadata);
  AtomicFile file(path, "safetensors");
  const uint64_t length = header.size();
  file.write(&length, sizeof(length));
  file.write(header.data(), header.size());
  for (const auto* item : order) {
    const auto tensor = item->make().detach().cpu().contiguous();
    FLEET_ASSERT(
        tensor.scalar_type() == item->dtype && tensor.sizes() == at::IntArrayRef(item->shape),
        "a tensor is not what was announced");
    file.write(tensor.data_ptr(), tensor.nbytes());
  }
  return file.commit();
}

uint64_t write_safetensors(const std::filesystem::path& path,
                           const std::vector<NamedTensor>& tensors,
                           const SafetensorsMetadata& metadata) {
  std::vector<SafetensorsItem> items;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || tensor.is_meta() || tensor.layout() != torch::kStrided) {
      throw Error("safetensors", format("'{}' has no plain numbers to write", name),
                  "give dense tensors that are on a device");
    }
    items.push_back(
        {name, tensor.scalar_type(), tensor.sizes().vec(), [tensor = tensor] { return tensor; }});
  }
  return write_safetensors(path, items, metadata);
}

}  // namespace fleet
