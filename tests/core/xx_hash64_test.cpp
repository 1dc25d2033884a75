// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/xx_hash64.h"

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

uint64_t hash_of(std::string_view text) {
  XxHash64 hash;
  hash.add(text.data(), text.size());
  return hash.value();
}

TEST(XxHash64Test, GivesThePublishedValues) {
  EXPECT_EQ(XxHash64::text(hash_of("")), "ef46db3751d8e999");
  EXPECT_EQ(XxHash64::text(hash_of("a")), "d24ec4f1a98c6e5b");
  EXPECT_EQ(XxHash64::text(hash_of("abc")), "44bc2cf5ad770999");
  EXPECT_EQ(XxHash64::text(hash_of("xxhash")), "32dd38952c4bc720");
  EXPECT_EQ(XxHash64::text(hash_of("Nobody inspects the spammish repetition")), "fbcea83c8a378bf1");
}

TEST(XxHash64Test, DoesNotDependOnHowTheBytesCome) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (size_t piece = 1; piece < 100; ++piece) {
    XxHash64 hash;
    for (size_t at = 0; at < text.size(); at += piece) {
      const auto part = std::string_view(text).substr(at, piece);
      hash.add(part.data(), part.size());
    }
    EXPECT_EQ(hash.value(), hash_of(text)) << piece;
  }
}

TEST(XxHash64Test, EveryBitCounts) {
  std::string text(75, 'x');
  const auto whole = hash_of(text);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(hash_of(text), whole) << bit;
    text[bit / 8] = 'x';
  }
}

TEST(XxHash64Test, ReadsFiles) {
  const TemporaryFolder folder;
  std::string text(3'000'000, 'a');
  text[2'500'000] = 'b';
  EXPECT_EQ(XxHash64::of_file(folder.write("large", text)), hash_of(text));
  EXPECT_TRUE(says(testing::error_message_of([&] { XxHash64::of_file(folder.path() / "none"); }),
                   "cannot read", "none", "No such file"));
}

}  // namespace
}  // namespace fleet
