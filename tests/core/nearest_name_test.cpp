// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/text/nearest_name.h"

#include <gtest/gtest.h>

namespace fleet {
namespace {

TEST(NearestNameTest, FindsTheNameThatWasMeant) {
  const std::vector<std::string> known = {"k_steps", "avg", "begin_step"};
  EXPECT_EQ(did_you_mean("k_step", known), " (did you mean 'k_steps'?)");
  EXPECT_EQ(did_you_mean("K-Steps", known), " (did you mean 'k_steps'?)");
  EXPECT_EQ(did_you_mean("averge", {"average"}), " (did you mean 'average'?)");
}

TEST(NearestNameTest, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(did_you_mean("learning_rate", {"k_steps", "avg"}), "");
}

TEST(NearestNameTest, AThirdOfTheLettersMayDiffer) {
  EXPECT_EQ(did_you_mean("abcdefghi", {"abcdefxyz"}), " (did you mean 'abcdefxyz'?)");
  EXPECT_EQ(did_you_mean("abcdefghi", {"xyzdefghi"}), " (did you mean 'xyzdefghi'?)");
  EXPECT_EQ(did_you_mean("abcdefghi", {"abcdefghijkl"}), " (did you mean 'abcdefghijkl'?)");
  EXPECT_EQ(did_you_mean("abcdefghi", {"abcdewxyz", "wxyzefghi", "aabbcdexyz"}), "");
}

TEST(NearestNameTest, DistancesAreThoseOfAllInsertionsRemovalsAndReplacements) {
  const KnownNames known({"abcdefghi"});
  for (const char* near : {"bcdefghij", "xabcdefgh", "abxcdxefxghi", "xbcdxfghx", "abxcxdxexfghi"})
    EXPECT_EQ(known.nearest(near), std::vector<std::string>{"abcdefghi"}) << near;
  for (const char* far : {"xbxdxfghx", "cdefghixy", "wxyzefghi", "defghi", "xaxbxcxdexfghi"})
    EXPECT_TRUE(known.nearest(far).empty()) << far;
}

TEST(NearestNameTest, FindsWordsOfANameAndNotPiecesOfWords) {
  EXPECT_EQ(did_you_mean("size", {"batch_size"}), " (did you mean 'batch_size'?)");
  EXPECT_EQ(did_you_mean("enable", {"--recompute_configs.enable_offload"}),
            " (did you mean '--recompute_configs.enable_offload'?)");
  EXPECT_EQ(did_you_mean("train_data", {"--data"}), " (did you mean '--data'?)");
  EXPECT_EQ(did_you_mean("load", {"--recompute_configs.enable_offload"}), "");
}

TEST(NearestNameTest, FindsWhatANameIsShortFor) {
  const std::vector<std::string> known = {"gradient_merge", "gradient_scale_configs", "amp"};
  EXPECT_EQ(did_you_mean("grad_merge", known), " (did you mean 'gradient_merge'?)");
  EXPECT_EQ(did_you_mean("merge_grad", known), "");
  EXPECT_EQ(did_you_mean("g", known), "");
}

TEST(NearestNameTest, IsSilentAboutATextThatIsNoName) {
  EXPECT_EQ(did_you_mean(std::string(100'000, 'x').append("k_steps"), {"k_steps", "avg"}), "");
}

}  // namespace
}  // namespace fleet
