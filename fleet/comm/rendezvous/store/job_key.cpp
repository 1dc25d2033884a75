// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/store/job_key.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::comm {
namespace {

constexpr auto kCreateKeyHint = "(umask 077; openssl rand -hex 32 > FILE) makes one";

}  // namespace

void check_job_key(const std::string& key, const std::string& where) {
  if (key.size() >= kMinKeyBytes && key.size() <= kMaxKeyBytes) return;
  throw UsageError("comm",
                   format("{} has {} bytes, and a job key has {} to {}", where, key.size(),
                          kMinKeyBytes, kMaxKeyBytes),
                   "use random text: openssl rand -hex 32 prints some");
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t filled = 0; filled < count;) {
    const auto got = ::getrandom(bytes.data() + filled, count - filled, 0);
    if (got < 0 && errno != EINTR) {
      throw Error("comm", format("the kernel gives no random bytes ({})", std::strerror(errno)));
    }
    if (got > 0) filled += static_cast<size_t>(got);
  }
  return bytes;
}

std::string make_job_key() {
  std::string key;
  for (const char byte : random_bytes(32))
    key += format("{:02x}", static_cast<unsigned char>(byte));
  return key;
}

std::string job_key_from_environment() {
  const char* text = std::getenv(kJobKeyVariable);
  if (text == nullptr || *text == '\0') return "";
  std::string key(text);
  check_job_key(key, kJobKeyVariable);
  return key;
}

std::string job_key_from_file(const std::string& path) {
  // Not blocking: the other end of a pipe may never be opened.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  const bool is_open = file && ::fstat(file.get(), &about) == 0;
  if (!is_open || !S_ISREG(about.st_mode)) {
    const std::string reason = is_open ? "not a regular file" : std::strerror(errno);
    throw UsageError("comm",
                     format("the job key cannot be read from {} ({})", printable(path), reason),
                     format("give a file that is there on every node: {}", kCreateKeyHint));
  }
  std::string text(kMaxKeyBytes + 2, '\0');
  const auto got = ::read(file.get(), text.data(), text.size());
  if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw UsageError("comm",
                     format("others than its owner may use {} (mode {:o}), so the job key in it is "
                            "no secret",
                            printable(path), about.st_mode & 07777U),
                     "make a new key that only you can read: " + std::string(kCreateKeyHint));
  }
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  text.resize(std::min(text.find_first_of("\r\n"), text.size()));
  // A variable of the environment, by which ranks get it, ends at a zero; HMAC takes zeros at the
  // end of a key for no key.
  if (const auto zero = text.find('\0'); zero != text.npos) {
    throw UsageError("comm",
                     format("{} has a zero byte at position {}, and a job key is a line of text",
                            printable(path), zero),
                     std::string(kCreateKeyHint));
  }
  check_job_key(text, printable(path));
  return text;
}

}  // namespace fleet::comm
