// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/formats/token_file.h"

#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/format.h"

namespace fleet {

TokenFile::TokenFile(std::filesystem::path path, const Vocabulary& vocabulary)
    : path_(std::move(path)),
      beside_(path_, "data"),
      start_(vocabulary.start()),
      separator_(vocabulary.separator()) {
  Descriptor own(::dup(beside_.descriptor()));
  const char* mode = path_.extension() == ".gz" ? "wb" : "wbT";  // T: not compressed
  file_ = own ? gzdopen(own.get(), mode) : nullptr;
  if (file_ == nullptr) fail();
  own.release();  // gzclose closes it
}

TokenFile::~TokenFile() {
  if (file_ != nullptr) gzclose(static_cast<gzFile>(file_));
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
  if (gzclose(static_cast<gzFile>(std::exchange(file_, nullptr))) != Z_OK) fail();
  beside_.commit();
}

void TokenFile::fail() const {
  const int error = errno;
  throw Error("data",
              format("cannot write {}: {}", path_.string(), std::generic_category().message(error)),
              fix_of_write_error(error));
}

}  // namespace fleet
