// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/fashion_mnist.h"

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/data/idx_bytes.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

class FashionMnistTest : public ::testing::Test {
 protected:
  void write_images(uint32_t count, uint32_t side = 28) {
    folder_.write("t10k-images-idx3-ubyte.gz",
                  gzip(idx_header({count, side, side}) + std::string(count * side * side, '\7')));
  }
  void write_labels(std::string_view labels) {
    folder_.write("t10k-labels-idx1-ubyte",  // unpacked, which is allowed
                  idx_header({static_cast<uint32_t>(labels.size())}) + std::string(labels));
  }
  std::string refusal() {
    return error_message_of([this] { load_fashion_mnist(folder_.path(), Phase::kTest); });
  }

  TemporaryFolder folder_;
};

TEST_F(FashionMnistTest, ReadsTheFilesOfAPhase) {
  write_images(3);
  write_labels({"\0\x9\1", 3});
  const auto test = load_fashion_mnist(folder_.path(), Phase::kTest);
  EXPECT_EQ(test->size(), 3);
  EXPECT_EQ(test->pixels().sizes(), (std::vector<int64_t>{3, 28, 28}));
  EXPECT_TRUE(torch::equal(test->labels(), torch::tensor({0, 9, 1}, torch::kInt64)));
}

TEST_F(FashionMnistTest, NamesThePackageWhenTheDataAreMissing) {
  EXPECT_TRUE(says(refusal(), "Fashion-MNIST is not in " + folder_.path().string(),
                   "apt-get install dataset-fashion-mnist"));
  write_images(1);
  EXPECT_TRUE(says(refusal(), "no t10k-labels-idx1-ubyte.gz there"));
}

TEST_F(FashionMnistTest, RefusesFilesThatDoNotBelongTogether) {
  write_images(3);
  write_labels({"\0\1", 2});
  EXPECT_TRUE(says(refusal(), "holds 3 images but", "holds 2 labels"));
}

TEST_F(FashionMnistTest, RefusesALabelThatIsNoClass) {
  write_images(3);
  write_labels("\1\2\xA");
  EXPECT_TRUE(says(refusal(), "label 10 of sample 2 is outside 0..9"));
}

TEST_F(FashionMnistTest, RefusesImagesOfAnotherSize) {
  write_images(2, 32);
  write_labels("\1\2");
  EXPECT_TRUE(says(refusal(), "not a list of 28 x 28 images"));
}

TEST_F(FashionMnistTest, ReadsTheDebianPackage) {
  if (!std::filesystem::exists(kFashionMnistDir)) {
    GTEST_SKIP() << "dataset-fashion-mnist is not installed";
  }
  const auto train = load_fashion_mnist(kFashionMnistDir, Phase::kTrain);
  EXPECT_EQ(train->size(), 60000);
  EXPECT_EQ(train->labels().bincount().min().item<int64_t>(), 6000);
  EXPECT_EQ(train->labels()[0].item<int64_t>(), 9);  // an ankle boot
  const auto pixels = train->pixels().to(torch::kFloat32) / 255;
  EXPECT_NEAR(pixels.mean().item<double>(), 0.2860, 1e-4);
  EXPECT_NEAR(pixels.std().item<double>(), 0.3530, 1e-4);
  EXPECT_EQ(load_fashion_mnist(kFashionMnistDir, Phase::kTest)->size(), 10000);
}

}  // namespace
}  // namespace fleet
