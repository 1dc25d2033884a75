// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/isfinite.h>
#include <gtest/gtest.h>

#include "fleet/applications/bert.h"
#include "fleet/core/error.h"
#include "fleet/data/formats/token_file.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::applications {
namespace {

using fleet::testing::error_message_of;

class BertDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Vocabulary vocabulary({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"});
    vocabulary.save(folder_.path() / "vocab.txt");
    TokenFile file(folder_.path() / "part", vocabulary);
    for (int64_t i = 0; i < 6; ++i) {
      file.write(std::vector<int64_t>(static_cast<size_t>(1 + i), 5 + i % 3),
                 std::vector<int64_t>{6, 7});
    }
    file.finish();
  }

  MaskedTextOptions options() {
    return {.data_dir = folder_.path() / "part",
            .vocab_path = folder_.path() / "vocab.txt",
            .max_seq_len = 16,
            .batch_size = 4};
  }

  static Bert small(int64_t vocab, int64_t positions) {
    return Bert(BertOptions{.vocab = vocab,
                            .hidden = 8,
                            .layers = 1,
                            .heads = 2,
                            .intermediate = 16,
                            .max_positions = positions});
  }

  TemporaryFolder folder_;
};

TEST_F(BertDataTest, FeedsTheModel) {
  auto model = small(8, 16);
  auto data = model.load_digital_dataset_from_file(options());
  int64_t samples = 0;
  for (const auto& batch : data) {
    const auto loss = model.loss(batch).mean();
    EXPECT_TRUE(torch::isfinite(loss).item<bool>());
    loss.backward();
    samples += batch.size();
  }
  EXPECT_EQ(samples, 6);
}

TEST_F(BertDataTest, RefusesDataThatTheModelHasNoRoomFor) {
  auto model = small(7, 12);
  EXPECT_TRUE(says(error_message_of([&] { model.load_digital_dataset_from_file(options()); }),
                   "vocab.txt has 8 tokens, the model 7",
                   "max_seq_len is 16, the model has 12 positions"));
}

}  // namespace
}  // namespace fleet::applications
