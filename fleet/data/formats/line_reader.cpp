// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/formats/line_reader.h"

#include <algorithm>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/utf8.h"
#include "fleet/data/formats/byte_source.h"

namespace fleet {
namespace {

constexpr size_t kChunk = 64 << 10;  // small files are many
constexpr size_t kLongestLine = 64 << 20;
constexpr uint64_t kMalformedAtAll = 32;  // in a short text a few are many

}  // namespace

LineReader::LineReader(std::filesystem::path path, LineText text)
    : path_(std::move(path)), text_(text), source_(open_bytes(path_)) {}

LineReader::~LineReader() = default;

void LineReader::refuse(uint64_t byte, const std::string& what) const {
  throw UsageError("data", format("{}: {} at byte {}", path_.string(), what, byte),
                   "give text in UTF-8; iconv converts other encodings");
}

void LineReader::fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t held = buffer_.size();
  if (held > kLongestLine) {
    throw UsageError("data",
                     format("{}:{}: a line of more than 64 MB", path_.string(), number_ + 1),
                     "give text files; this is none");
  }
  buffer_.resize(held + kChunk);
  const auto got = source_->read(reinterpret_cast<uint8_t*>(buffer_.data()) + held, kChunk);
  buffer_.resize(held + got);
  ended_ = got < kChunk;
  if (const auto nul = buffer_.find('\0', held); nul != buffer_.npos) {
    refuse(taken_ + (nul - held), "no text, but a NUL");
  }
  taken_ += got;
}

void LineReader::check_prose(std::string_view line) {
  const uint64_t line_begin = taken_ - (buffer_.size() - begin_);
  for (size_t at = 0; at < line.size();) {
    const size_t here = at;
    if (decode_utf8(line, at) != kMalformedUtf8) continue;
    if (malformed_++ == 0) first_malformed_ = line_begin + here;
  }
  const auto seen = static_cast<double>(line_begin + line.size());
  if (malformed_ > kMalformedAtAll && static_cast<double>(malformed_) > kMalformedShare * seen) {
    refuse(first_malformed_,
           format("not UTF-8: {} of the first {:.0f} bytes are malformed, the first", malformed_,
                  seen));
  }
}

bool LineReader::next(std::string_view& line) {
  size_t end = buffer_.find('\n', begin_);
  while (end == buffer_.npos && !ended_) {
    const size_t held = buffer_.size() - begin_;
    fill();
    end = buffer_.find('\n', held);
  }
  if (begin_ == buffer_.size() && end == buffer_.npos) return false;
  if (end == buffer_.npos) end = buffer_.size();
  line = std::string_view(buffer_).substr(begin_, end - begin_);
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (text_ == LineText::kProse) check_prose(line);
  begin_ = std::min(end + 1, buffer_.size());
  ++number_;
  return true;
}

}  // namespace fleet
