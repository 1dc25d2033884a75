// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/program/run_options.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "fleet/core/text/format.h"
#include "fleet/io/weights.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

TEST(RunOptionsTest, FileToSaveIsSeenToBeWritableBeforeTraining) {
  const TemporaryFolder folder;
  folder.write("file", "x");
  torch::nn::Linear net(2, 3);
  const RunOptions run{.save = (folder.path() / "file" / "net.safetensors").string()};
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { run.load(net); }),
                   "[weights] --save: cannot write ", "Not a directory"));
}

TEST(RunOptionsTest, FileToSaveIsNotTheOneToStartFrom) {
  const TemporaryFolder folder;
  torch::nn::Linear net(2, 3);
  const auto file = folder.path() / "net.safetensors";
  save_weights(net, file);
  std::filesystem::create_hard_link(file, folder.path() / "other");
  const RunOptions run{.weights = file.string(), .save = (folder.path() / "other").string()};
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { run.load(net); }), "--save",
                   "is the file of --weights", "would be lost"));
}

// `bert --strategy s.json --save s.json` replaced the strategy; vocabularies, lists and data too.
TEST(RunOptionsTest, FileToSaveReplacesNothingButWeights) {
  const TemporaryFolder folder;
  torch::nn::Linear net(2, 3);
  const auto file = folder.path() / "s.json";
  folder.write("s.json", R"({"amp": true})");
  std::filesystem::create_symlink("s.json", folder.path() / "link");
  for (const auto* name : {"s.json", "link"}) {
    const RunOptions run{.save = (folder.path() / name).string()};
    EXPECT_TRUE(says(error_message_of<UsageError>([&] { run.load(net); }),
                     format("[weights] --save {} is there and is no file of weights", run.save),
                     "would be lost", "give another --save, or remove that file"));
  }
  EXPECT_EQ(std::filesystem::file_size(file), 13u);

  std::filesystem::resize_file(file, 0);  // as mktemp makes it
  const RunOptions run{.save = file.string()};
  for (int i = 0; i < 2; ++i) {
    run.load(net);
    run.save_weights(net);
  }
  EXPECT_TRUE(load_weights(net, run.save).complete());
}

TEST(RunOptionsTest, FolderOfTheFileToSaveIsMade) {
  const TemporaryFolder folder;
  torch::nn::Linear net(2, 3);
  const RunOptions run{.save = (folder.path() / "new" / "net.safetensors").string()};
  run.load(net);
  run.save_weights(net);
  EXPECT_TRUE(load_weights(net, run.save).complete());
}

}  // namespace
}  // namespace fleet
