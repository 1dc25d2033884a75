#include "fleet/data/line_reader.h"

#include <algorithm>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/data/byte_source.h"

namespace fleet {
namespace {

constexpr size_t kChunk = 256 << 10;
constexpr size_t kLongestLine = 64 << 20;

}  // namespace

LineReader::LineReader(std::filesystem::path path)
    : path_(std::move(path)), source_(open_bytes(path_)) {}

LineReader::~LineReader() = default;

bool LineReader::next(std::string_view& line) {
  size_t end = buffer_.find('\n', begin_);
  while (end == buffer_.npos && !ended_) {
    buffer_.erase(0, begin_);
    begin_ = 0;
    const size_t held = buffer_.size();
    if (held > kLongestLine) {
      throw Error("data", format("{}:{}: a line of more than 64 MB", path_.string(), number_ + 1),
                  "give text files; this is none");
    }
    buffer_.resize(held + kChunk);
    const auto got = source_->read(reinterpret_cast<uint8_t*>(buffer_.data()) + held, kChunk);
    buffer_.resize(held + got);
    ended_ = got < kChunk;
    end = buffer_.find('\n', held);
  }
  if (begin_ == buffer_.size() && end == buffer_.npos) return false;
  if (end == buffer_.npos) end = buffer_.size();
  line = std::string_view(buffer_).substr(begin_, end - begin_);
  if (line.ends_with('\r')) line.remove_suffix(1);
  begin_ = std::min(end + 1, buffer_.size());
  ++number_;
  return true;
}

}  // namespace fleet
