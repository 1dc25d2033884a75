#include "fleet/data/token_file.h"

#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet {

TokenFile::TokenFile(std::filesystem::path path, const Vocabulary& vocabulary)
    : path_(std::move(path)),
      beside_(path_.parent_path() / ("." + path_.filename().string() + ".part")),  // hidden
      start_(vocabulary.start()),
      separator_(vocabulary.separator()) {
  file_ = gzopen(beside_.c_str(), path_.extension() == ".gz" ? "wb" : "wbT");  // T: as it is
  if (file_ == nullptr) fail();
}

TokenFile::~TokenFile() {
  if (file_ == nullptr) return;
  gzclose(static_cast<gzFile>(file_));
  std::error_code ignored;
  std::filesystem::remove(beside_, ignored);
}

void TokenFile::write(std::span<const int64_t> first, std::span<const int64_t> second) {
  const size_t first_length = first.size() + 2;
  const size_t length = first_length + (second.empty() ? 0 : second.size() + 1);
  line_ = std::to_string(start_);
  const auto add = [&](std::span<const int64_t> sentence) {
    for (const int64_t id : sentence) line_ += ' ' + std::to_string(id);
    line_ += ' ' + std::to_string(separator_);
  };
  add(first);
  if (!second.empty()) add(second);
  for (size_t i = 0; i < length; ++i)
    line_.append(i == 0 ? ";" : " ").append(i < first_length ? "0" : "1");
  for (size_t i = 0; i < length; ++i) line_.append(i == 0 ? ";" : " ").append(std::to_string(i));
  line_ += ";1\n";
  if (gzwrite(static_cast<gzFile>(file_), line_.data(), static_cast<unsigned>(line_.size())) <= 0)
    fail();
}

void TokenFile::finish() {
  if (gzclose(static_cast<gzFile>(std::exchange(file_, nullptr))) != Z_OK ||
      std::rename(beside_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    std::remove(beside_.c_str());
    errno = error;
    fail();
  }
}

void TokenFile::fail() const {
  throw Error("data",
              format("cannot write {}: {}", path_.string(), std::generic_category().message(errno)),
              "check the folder, its permissions and the room on its disk");
}

}  // namespace fleet
