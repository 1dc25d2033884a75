// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/formats/idx_file.h"

#include <sys/resource.h>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/data/idx_bytes.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

class IdxFileTest : public ::testing::Test {
 protected:
  // What the reader says to a file of these bytes; every refusal must name the file.
  std::string refusal(std::string_view bytes, const std::string& name = "file") {
    const auto path = folder_.write(name, bytes);
    const auto text = error_message_of([&] { read_idx_file(path); });
    EXPECT_TRUE(says(text, path.string()));
    return text;
  }

  TemporaryFolder folder_;
};

std::string counting(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(i * 7);
  return bytes;
}

TEST_F(IdxFileTest, ReadsPlainAndPackedFilesAlike) {
  const std::string file = idx_header({3, 200, 300}) + counting(180000);
  const auto plain = read_idx_file(folder_.write("plain", file));
  const auto packed = read_idx_file(folder_.write("packed.gz", gzip(file)));
  ASSERT_EQ(plain.sizes(), (std::vector<int64_t>{3, 200, 300}));
  EXPECT_EQ(plain.scalar_type(), torch::kUInt8);
  EXPECT_EQ(plain[1][2][3].item<int>(), (60000 + 600 + 3) * 7 % 256);
  EXPECT_TRUE(torch::equal(plain, packed));
}

TEST_F(IdxFileTest, ReadsAnEmptyListAndSeveralGzipMembers) {
  EXPECT_EQ(read_idx_file(folder_.write("none", idx_header({0}))).numel(), 0);
  const auto members = gzip(idx_header({4}) + "ab") + gzip("cd");
  EXPECT_EQ(read_idx_file(folder_.write("members.gz", members))[3].item<int>(), 'd');
}

TEST_F(IdxFileTest, SaysWhyAFileCannotBeOpened) {
  const auto path = folder_.path() / "absent";
  EXPECT_TRUE(says(error_message_of([&] { read_idx_file(path); }), "cannot read " + path.string(),
                   "No such file"));
}

TEST_F(IdxFileTest, RefusesSizesThatNoTensorHas) {
  constexpr uint32_t kMost = 0xFFFFFFFF;
  EXPECT_TRUE(says(refusal(idx_header({0, kMost, kMost, kMost})),
                   "more bytes than a 64-bit number counts"));
  EXPECT_TRUE(says(refusal(idx_header(std::vector<uint32_t>(65, 1)) + "a"),
                   "65 dimensions, more than the 64 of a tensor"));
  EXPECT_EQ(
      read_idx_file(folder_.write("64", idx_header(std::vector<uint32_t>(64, 1)) + "a")).dim(), 64);
}

TEST_F(IdxFileTest, RefusesAForeignHeader) {
  EXPECT_TRUE(says(refusal("PNG...."), "not an IDX file: it starts with 50 4e 47 2e"));
  EXPECT_TRUE(says(refusal(idx_header({1}, 0x0D) + "abcd"), "element type 0x0d"));
  EXPECT_TRUE(says(refusal(idx_header({})), "without dimensions"));
}

TEST_F(IdxFileTest, RefusesATruncatedFile) {
  const std::string file = idx_header({2, 3}) + "abcdef";
  EXPECT_TRUE(says(refusal(""), "no room for the IDX header"));
  EXPECT_TRUE(says(refusal(file.substr(0, 3)), "no room for the IDX header"));
  EXPECT_TRUE(says(refusal(file.substr(0, 10)), "the IDX header is not complete"));
  EXPECT_TRUE(says(refusal(file.substr(0, 16)), "the header promises 6 bytes, 4 are there"));
  EXPECT_TRUE(
      says(refusal(gzip(file.substr(0, 16)), "a.gz"), "the header promises 6 bytes, 4 are there"));
}

TEST_F(IdxFileTest, RefusesTrailingBytes) {
  const std::string file = idx_header({3}) + "abc";
  EXPECT_TRUE(says(refusal(file + "d"), "there are more bytes than the 3 of the header"));
  EXPECT_TRUE(
      says(refusal(gzip(file + "d"), "a.gz"), "there are more bytes than the 3 of the header"));
  EXPECT_TRUE(says(refusal(gzip(file) + "garbage", "b.gz"), "corrupt gzip data"));
}

TEST_F(IdxFileTest, RefusesDamagedGzip) {
  const std::string packed = gzip(idx_header({5000}) + counting(5000));
  EXPECT_TRUE(says(refusal("not gzip at all", "a.gz"), "corrupt gzip data"));
  EXPECT_TRUE(says(refusal("", "b.gz"), "truncated"));
  for (const size_t kept : {size_t{5}, packed.size() / 2, packed.size() - 1}) {
    EXPECT_TRUE(says(refusal(packed.substr(0, kept), "c.gz"),
                     "truncated: the gzip data stop before their end"));
  }
  std::string flipped = packed;
  flipped[flipped.size() - 6] ^= 1;  // in the checksum: all data come out, and are not believed
  EXPECT_TRUE(says(refusal(flipped, "d.gz"), "incorrect data check"));
}

// Each lie alone would need more memory than this machine has, so a reader that believed it would
// die rather than answer.
TEST_F(IdxFileTest, DoesNotAllocateOnTheWordOfAHeader) {
  constexpr uint32_t kHuge = 0xFFFFFFFF;
  EXPECT_TRUE(says(refusal(idx_header({kHuge, 1024}) + "abc"), "more than the file can hold"));
  EXPECT_TRUE(says(refusal(gzip(idx_header({kHuge, 1024}) + "abc"), "a.gz"),
                   "more than the file can hold"));
  EXPECT_TRUE(says(refusal(idx_header({kHuge, kHuge, kHuge})), "64-bit number"));
  // A gzip file of 1 MB could hold the promised 900 MB, but does not: memory follows the data.
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  std::string noise;
  for (uint64_t i = 0, x = 1; i < (1 << 20); ++i)
    noise += static_cast<char>((x *= 0x5851F42D4C957F2D) >> 56);
  EXPECT_TRUE(says(refusal(gzip(idx_header({900 << 20}) + noise), "b.gz"),
                   "the header promises 943718400 bytes, 1048576 are there"));
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10);  // in KB
}

}  // namespace
}  // namespace fleet
