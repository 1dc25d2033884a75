// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/formats/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

constexpr uint64_t kChunk = 64 << 10;
// Deflate spends at least two bits on a copy of 258 bytes, so a byte never inflates to more.
constexpr uint64_t kMaxPerDeflatedByte = 1032;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw UsageError("data", format("{}: {}", path.string(), what),
                   "fetch the file again; it is damaged or not what its name says");
}

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(const std::filesystem::path& path) : path_(path) {
    std::error_code failed;
    file_bytes_ = std::filesystem::file_size(path, failed);
    if (!failed) file_.reset(std::fopen(path.c_str(), "rb"));
    if (!file_) {
      const std::string why = failed ? failed.message() : std::strerror(errno);
      throw UsageError("data", format("cannot read {}: {}", path.string(), why),
                       "check the path and its permissions");
    }
  }

  uint64_t read(uint8_t* out, uint64_t count) override { return read_file(out, count); }
  uint64_t most() const override { return file_bytes_; }

 protected:
  uint64_t read_file(uint8_t* out, uint64_t count) {
    const uint64_t got = std::fread(out, 1, count, file_.get());
    if (got < count && std::ferror(file_.get())) refuse(path_, "cannot be read to its end");
    return got;
  }

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  uint64_t file_bytes_ = 0;
};

// zlib's gzread ignores garbage after the last member; this reader does not.
class GzipSource : public PlainSource {
 public:
  explicit GzipSource(const std::filesystem::path& path) : PlainSource(path) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    FLEET_ASSERT(inflateInit2(&stream_, kGzipOnly) == Z_OK, "zlib does not start");
  }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;
  ~GzipSource() override { inflateEnd(&stream_); }

  uint64_t read(uint8_t* out, uint64_t count) override {
    uint64_t done = 0;
    while (done < count && !ended_) {
      if (stream_.avail_in == 0) refill();
      const auto room = static_cast<uInt>(std::min<uint64_t>(count - done, kChunk));
      stream_.next_out = out + done;
      stream_.avail_out = room;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      done += room - stream_.avail_out;
      if (status == Z_STREAM_END) {
        next_member();
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        refuse(path_, format("corrupt gzip data ({})", stream_.msg ? stream_.msg : "no reason"));
      }
    }
    return done;
  }

  uint64_t most() const override {
    constexpr auto kNoLimit = std::numeric_limits<uint64_t>::max();
    return file_bytes_ < kNoLimit / kMaxPerDeflatedByte ? file_bytes_ * kMaxPerDeflatedByte
                                                        : kNoLimit;
  }

 private:
  void refill() {
    stream_.next_in = packed_.data();
    stream_.avail_in = static_cast<uInt>(read_file(packed_.data(), packed_.size()));
    if (stream_.avail_in == 0) refuse(path_, "truncated: the gzip data stop before their end");
  }

  // A gzip file may have several members; anything else after a member is an error.
  void next_member() {
    if (stream_.avail_in == 0) {
      stream_.next_in = packed_.data();
      stream_.avail_in = static_cast<uInt>(read_file(packed_.data(), packed_.size()));
    }
    ended_ = stream_.avail_in == 0;
    if (!ended_) inflateReset(&stream_);
  }

  z_stream stream_{};
  std::array<uint8_t, kChunk> packed_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path) {
  if (path.extension() == ".gz") return std::make_unique<GzipSource>(path);
  return std::make_unique<PlainSource>(path);
}

}  // namespace fleet
