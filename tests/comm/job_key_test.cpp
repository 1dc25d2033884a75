// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/store/job_key.h"

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::comm {
namespace {

using testing::error_message_of;

class JobKeyTest : public ::testing::Test {
 protected:
  std::string file(const std::string& text, mode_t mode) const {
    const auto path = folder_.path() / "key";
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path.string();
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(JobKeyTest, IsRandomEveryTime) {
  const auto key = make_job_key();
  EXPECT_EQ(key.size(), 64u);
  EXPECT_EQ(key.find_first_not_of("0123456789abcdef"), key.npos);
  EXPECT_NE(key, make_job_key());
}

TEST_F(JobKeyTest, IsTheFirstLineOfAFile) {
  EXPECT_EQ(job_key_from_file(file("0123456789abcdef0123\nmore\n", 0600)), "0123456789abcdef0123");
  EXPECT_EQ(job_key_from_file(file("0123456789abcdef", 0400)), "0123456789abcdef");
}

TEST_F(JobKeyTest, FileThatOthersCanReadIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620}) {
    EXPECT_TRUE(says(
        error_message_of<UsageError>([&] { job_key_from_file(file("0123456789abcdef\n", mode)); }),
        "others than its owner may use ", "is no secret", "umask 077"));
  }
}

TEST_F(JobKeyTest, FileThatIsNotThereIsRefusedWithTheCommandThatMakesOne) {
  EXPECT_TRUE(says(error_message_of<UsageError>([] { job_key_from_file("/nowhere/key"); }),
                   "cannot be read from /nowhere/key (No such file or directory)",
                   "(umask 077; openssl rand -hex 32 > FILE) makes one"));
}

// Ranks would get the part before it, and twenty zeros would be the same key as none.
TEST_F(JobKeyTest, BytesOfZeroAreNoText) {
  for (const size_t at : {size_t{0}, size_t{16}, size_t{19}}) {
    std::string key(20, 'x');
    key[at] = '\0';
    EXPECT_TRUE(
        says(error_message_of<UsageError>([&] { job_key_from_file(file(key + "\n", 0600)); }),
             fleet::format("has a zero byte at position {}, and a job key is a line of text", at),
             "openssl rand -hex 32 > FILE"));
  }
  EXPECT_TRUE(says(
      error_message_of<UsageError>([&] { job_key_from_file(file(std::string(20, '\0'), 0600)); }),
      "has a zero byte at position 0"));
}

// Opening a pipe would wait for somebody to write to it, with the signals blocked.
TEST_F(JobKeyTest, PipesFoldersAndDevicesAreNoKeyFiles) {
  const auto pipe = file("", 0600) + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& path : {pipe, std::string("/"), std::string("/dev/zero")}) {
    EXPECT_TRUE(says(error_message_of<UsageError>([&] { job_key_from_file(path); }),
                     "cannot be read from " + path + " (not a regular file)"));
  }
}

TEST_F(JobKeyTest, ShortKeysAreNoSecret) {
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { job_key_from_file(file("secret\n", 0600)); }),
                   "has 6 bytes, and a job key has 16 to 4096"));
  EXPECT_TRUE(says(
      error_message_of<UsageError>([&] { job_key_from_file(file(std::string(5000, 'x'), 0600)); }),
      "a job key has 16 to 4096"));
  ::setenv(kJobKeyVariable, "short", 1);
  EXPECT_TRUE(says(error_message_of<UsageError>([] { job_key_from_environment(); }),
                   "FLEET_JOB_KEY has 5 bytes"));
  ::unsetenv(kJobKeyVariable);
  EXPECT_EQ(job_key_from_environment(), "");
}

}  // namespace
}  // namespace fleet::comm
