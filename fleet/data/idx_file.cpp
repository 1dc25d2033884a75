#include "fleet/data/idx_file.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet {
namespace {

constexpr uint8_t kUnsignedByte = 0x08;
constexpr uint64_t kChunk = 64 << 10;
// Deflate spends at least two bits on a copy of 258 bytes, so a byte never inflates to more.
constexpr uint64_t kMostPerDeflatedByte = 1032;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Error("data", format("{}: {}", path.string(), what),
              "fetch the file again; it is damaged or not what its name says");
}

// The bytes of a file in order, whatever it is packed in.
class ByteSource {
 public:
  explicit ByteSource(const std::filesystem::path& path) : path_(path) {
    std::error_code failed;
    file_bytes_ = std::filesystem::file_size(path, failed);
    if (!failed) file_.reset(std::fopen(path.c_str(), "rb"));
    if (!file_) {
      const std::string why = failed ? failed.message() : std::strerror(errno);
      throw Error("data", format("cannot read {}: {}", path.string(), why),
                  "check the path and its permissions");
    }
  }
  virtual ~ByteSource() = default;

  // Fills `out` as far as the content goes; less than `count` only at its end.
  virtual uint64_t read(uint8_t* out, uint64_t count) { return read_file(out, count); }

  // No more than this can come out in total.
  virtual uint64_t most() const { return file_bytes_; }

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

// zlib's gzread would ignore garbage behind the last member; this one does not.
class GzipSource : public ByteSource {
 public:
  explicit GzipSource(const std::filesystem::path& path) : ByteSource(path) {
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
    return file_bytes_ < kNoLimit / kMostPerDeflatedByte ? file_bytes_ * kMostPerDeflatedByte
                                                         : kNoLimit;
  }

 private:
  void refill() {
    stream_.next_in = packed_.data();
    stream_.avail_in = static_cast<uInt>(read_file(packed_.data(), packed_.size()));
    if (stream_.avail_in == 0) refuse(path_, "truncated: the gzip data stop before their end");
  }

  // A gzip file may be several members in a row; anything else behind one is an error of the next.
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

std::unique_ptr<ByteSource> open(const std::filesystem::path& path) {
  if (path.extension() == ".gz") return std::make_unique<GzipSource>(path);
  return std::make_unique<ByteSource>(path);
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
  for (auto& size : shape) {
    if (source.read(word.data(), 4) < 4) refuse(path, "truncated: the IDX header is not complete");
    size = int64_t{word[0]} << 24 | word[1] << 16 | word[2] << 8 | word[3];
  }
  return shape;
}

}  // namespace

torch::Tensor read_idx_file(const std::filesystem::path& path) {
  const auto source = open(path);
  const auto shape = read_shape(*source, path);
  uint64_t promised = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(promised, static_cast<uint64_t>(size), &promised)) {
      refuse(path, "the header promises more bytes than a 64-bit number counts");
    }
  }
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
    refuse(path, format("bytes are left behind the {} that the header promises", promised));
  }
  auto* data = bytes->data();
  return torch::from_blob(
      data, shape, [owner = bytes.release()](void*) { delete owner; }, torch::kUInt8);
}

}  // namespace fleet
