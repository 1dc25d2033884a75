// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::detail {
namespace {

using nlohmann::json;

constexpr size_t kMaxDimensions = 64;  // LibTorch's loops take no more
constexpr size_t kShownName = 200;     // of a hostile name, in an error

constexpr std::pair<std::string_view, torch::ScalarType> kTypes[] = {
    {"F64", torch::kDouble},    {"F32", torch::kFloat}, {"F16", torch::kHalf},
    {"BF16", torch::kBFloat16}, {"I64", torch::kLong},  {"I32", torch::kInt},
    {"I16", torch::kShort},     {"I8", torch::kChar},   {"U8", torch::kByte},
    {"BOOL", torch::kBool}};

std::string in_quotes(std::string_view name) {
  std::string text = "'";
  for (const char c : name.substr(0, kShownName)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7F ? format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text + (name.size() > kShownName ? "...'" : "'");
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw UsageError("safetensors", format("{}: {}", path.string(), what),
                   "fetch or write the file again; it is damaged or not what its name says");
}

// Takes the header token by token, so that nothing is kept which does not belong there, and a
// mistake is known by its entry. Its depth is at most three: header, entry, list.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::filesystem::path& path) : path_(path) {}

  SafetensorsHeader result;

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kHeader;
    } else if (place_ == Place::kHeader) {
      place_ = name_ == kSafetensorsMetadata ? Place::kMetadata : Place::kEntry;
      if (place_ == Place::kEntry) entry_ = Entry{};
    } else {
      wrong("an object");
    }
    return true;
  }

  bool key(std::string& word) override {
    switch (place_) {
      case Place::kHeader:
        if (!names_.insert(word).second) refuse(path_, format("{} occurs twice", in_quotes(word)));
        name_ = std::move(word);
        break;
      case Place::kMetadata:
        if (result.metadata.count(word) > 0)
          refuse(path_, format("{} occurs twice in its metadata", in_quotes(word)));
        field_ = std::move(word);
        break;
      default:
        field_ = std::move(word);
        if (!entry_.seen.insert(field_).second)
          refuse(path_, format("{} has {} twice", in_quotes(name_), in_quotes(field_)));
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kEntry) finish_entry();
    place_ = place_ == Place::kHeader ? Place::kEnd : Place::kHeader;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kEntry || (field_ != "shape" && field_ != "data_offsets")) wrong("a list");
    place_ = Place::kList;
    return true;
  }

  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kList) wrong("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      wrong(format("the number {}", value));
    auto& list = field_ == "shape" ? entry_.shape : entry_.offsets;
    const size_t most = field_ == "shape" ? kMaxDimensions : 2;
    if (list.size() == most)
      refuse(path_,
             format("{} has more than {} numbers in its {}", in_quotes(name_), most, field_));
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      result.metadata.emplace(std::move(field_), std::move(value));
    } else if (place_ == Place::kEntry && field_ == "dtype") {
      entry_.dtype = std::move(value);
    } else {
      wrong("a text");
    }
    return true;
  }

  bool null() override { wrong("null"); }
  bool boolean(bool) override { wrong("a truth value"); }
  bool number_integer(number_integer_t) override { wrong("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { wrong("a fraction"); }
  bool binary(binary_t&) override { wrong("bytes"); }
  bool parse_error(std::size_t at, const std::string&, const json::exception&) override {
    refuse(path_, format("its header is not JSON from byte {} on{}", at,
                         name_.empty() ? "" : ", behind " + in_quotes(name_)));
  }

 private:
  enum class Place { kStart, kHeader, kMetadata, kEntry, kList, kEnd };
  struct Entry {
    std::string dtype;
    std::vector<int64_t> shape, offsets;
    std::set<std::string> seen;
  };

  [[noreturn]] void wrong(const std::string& what) {
    if (place_ == Place::kStart) refuse(path_, format("its header is {} and no object", what));
    if (place_ == Place::kHeader)
      refuse(path_, format("{} is {} where an object must be", in_quotes(name_), what));
    refuse(path_, format("{} has {} at {}, where the format has none", in_quotes(name_), what,
                         in_quotes(field_)));
  }

  void finish_entry() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (entry_.seen.count(field) == 0)
        refuse(path_, format("{} has no {}", in_quotes(name_), field));
    }
    const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const auto& known) { return known.first == entry_.dtype; });
    if (type == std::end(kTypes)) {
      refuse(path_, format("{} is of type {}, which Fleet does not read", in_quotes(name_),
                           in_quotes(entry_.dtype)));
    }
    if (entry_.offsets.size() != 2)
      refuse(path_,
             format("{} has {} data_offsets, not 2", in_quotes(name_), entry_.offsets.size()));
    const int64_t begin = entry_.offsets[0], end = entry_.offsets[1];
    if (end < begin)
      refuse(path_, format("{} ends at {}, before its begin at {}", in_quotes(name_), end, begin));
    const auto bytes = tensor_bytes(type->second, entry_.shape);
    if (!bytes)
      refuse(path_, format("the shape of {} has more bytes than can be counted", in_quotes(name_)));
    if (*bytes != end - begin) {
      refuse(path_, format("{} takes {} bytes for its type and shape, its data_offsets {} to {} "
                           "hold {}",
                           in_quotes(name_), *bytes, begin, end, end - begin));
    }
    result.entries.push_back(
        {std::move(name_), type->second, std::move(entry_.shape), begin, *bytes});
  }

  const std::filesystem::path& path_;
  Place place_ = Place::kStart;
  std::set<std::string> names_;
  std::string name_, field_;
  Entry entry_;
};

// From offsets in the data to offsets in the file, once it is sure that they cover the data
// exactly.
void place(std::vector<SafetensorsEntry>& entries, const std::filesystem::path& path,
           int64_t data_begin, int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.bytes, a.name) < std::tie(b.begin, b.bytes, b.name);
  });
  int64_t end = 0;
  const SafetensorsEntry* before = nullptr;
  for (auto& entry : entries) {
    if (entry.begin > data_bytes || entry.bytes > data_bytes - entry.begin) {
      refuse(path, format("truncated: {} ends at byte {} of the data, {} are there",
                          in_quotes(entry.name), entry.begin + entry.bytes, data_bytes));
    }
    if (entry.begin < end) {
      refuse(path, format("{} begins at byte {} of the data, inside {}, which ends at {}",
                          in_quotes(entry.name), entry.begin, in_quotes(before->name), end));
    }
    if (entry.begin > end) {
      refuse(path, format("bytes {} to {} of the data, before {}, belong to no tensor", end,
                          entry.begin, in_quotes(entry.name)));
    }
    end = entry.begin + entry.bytes;
    before = &entry;
  }
  if (end != data_bytes) {
    refuse(path, format("the last {} bytes of the file belong to no tensor", data_bytes - end));
  }
  for (auto& entry : entries) entry.begin += data_begin;
}

}  // namespace

std::optional<int64_t> tensor_bytes(torch::ScalarType dtype, const std::vector<int64_t>& shape) {
  // An empty tensor may not lie about its other sizes either: strides are made of them.
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  bool empty = false;
  for (const int64_t size : shape) {
    empty |= size == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, const std::filesystem::path& path,
                                           int64_t data_begin, int64_t data_bytes) {
  if (text.empty() || text.front() != '{') refuse(path, "its header does not begin with '{'");
  if (const auto zero = text.find('\0'); zero != text.npos) {
    refuse(path, format("its header has a zero at byte {}", zero));  // where the parser would stop
  }
  HeaderReader reader(path);
  json::sax_parse(text.begin(), text.end(), &reader);
  place(reader.result.entries, path, data_begin, data_bytes);
  return std::move(reader.result);
}

}  // namespace fleet::detail

namespace fleet {

std::string_view safetensors_type_name(torch::ScalarType dtype) {
  for (const auto& [name, type] : detail::kTypes) {
    if (type == dtype) return name;
  }
  return {};
}

}  // namespace fleet
