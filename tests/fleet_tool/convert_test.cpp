// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "fleet/applications/applications.h"
#include "fleet/core/error.h"
#include "fleet/io/weights.h"

#include "tests/data/temporary_folder.h"
#include "tests/fleet_tool/output_of.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tools/fleet/commands.h"
#include "tools/fleet/models.h"

namespace fleet::tool {
namespace {

using fleet::testing::error_message_of;

class ConvertTest : public ::testing::Test {
 protected:
  std::string path(const char* name) { return (folder_.path() / name).string(); }

  TemporaryFolder folder_;
};

TEST_F(ConvertTest, WritesAFileThatTheModelLoads) {
  auto model = applications::Resnet(
      applications::ResnetOptions{.blocks = {2, 2, 2, 2}, .bottleneck = false, .classes = 7});
  save_weights(model, path("a"));
  EXPECT_TRUE(says(output_of({"convert", "--model", "resnet18", "--classes", "7", "--from",
                              path("a"), "--to", path("b"), "--dtype", "BF16"}),
                   "fits resnet18: 122 tensors", "wrote " + path("b")));
  const SafetensorsFile before(path("a")), after(path("b"));
  ASSERT_EQ(before.entries().size(), after.entries().size());
  for (const auto& entry : before.entries()) {
    const auto type = entry.dtype == torch::kFloat ? torch::kBFloat16 : entry.dtype;
    EXPECT_TRUE(torch::equal(after.read(after.at(entry.name)), before.read(entry).to(type)));
  }
  load_weights(model, path("b"));
}

TEST_F(ConvertTest, ListsEverythingThatDoesNotFit) {
  write_safetensors(path("a"),
                    {{"conv1.weight", torch::empty({64, 3, 3, 3})}, {"extra", torch::arange(2)}});
  const auto text = error_message_of([&] {
    output_of({"convert", "--model=resnet50", "--from", path("a"), "--to", path("b")});
  });
  EXPECT_TRUE(says(text, "missing: layer4.2.conv3.weight", "missing: fc.bias", "unexpected: extra",
                   "conv1.weight is 64 x 3 x 3 x 3 in the file and 64 x 3 x 7 x 7 in the model"));
  EXPECT_FALSE(std::filesystem::exists(path("b")));
}

// `fleet inspect a $'b\e[2J'` cleared the screen.
TEST_F(ConvertTest, NamesOfFilesArePrintedWithoutControlCharacters) {
  const auto file = path("b\x1b[2J");
  write_safetensors(file, {{"x", torch::arange(2)}});
  const auto listed = output_of({"inspect", file, file});
  EXPECT_EQ(listed.find('\x1b'), listed.npos) << listed;
  EXPECT_TRUE(says(listed, path("b") + "\\x1b[2J\n"));

  auto model = applications::Resnet(
      applications::ResnetOptions{.blocks = {2, 2, 2, 2}, .bottleneck = false, .classes = 7});
  save_weights(model, file);
  const auto converted = output_of({"convert", "--model", "resnet18", "--classes", "7", "--from",
                                    file, "--to", path("c\x1b[2J")});
  EXPECT_EQ(converted.find('\x1b'), converted.npos) << converted;
  EXPECT_TRUE(says(converted, "b\\x1b[2J fits resnet18", "wrote " + path("c") + "\\x1b[2J"));
}

TEST_F(ConvertTest, NeverOverwritesWhatItReads) {
  write_safetensors(path("a"), {{"x", torch::arange(2)}});
  std::filesystem::create_symlink("a", path("link"));
  for (const auto* to : {"a", "./a", "link"}) {
    EXPECT_TRUE(
        says(error_message_of<UsageError>([&] {
               output_of({"convert", "--model=resnet50", "--from", path("a"), "--to", path(to)});
             }),
             "--to", "is the file of --from", "would be lost"));
  }
  EXPECT_TRUE(
      says(error_message_of<UsageError>([&] {
             output_of({"convert", "--model=resnet50", "--from", path("a"), "--to", path("a/b")});
           }),
           "--to: cannot write", "Not a directory"));
}

TEST_F(ConvertTest, KnowsEveryModelByName) {
  for (const auto name : applications::preset_names()) {
    const ModelHandle model(meta_model(std::string(name), 0, 0));
    ASSERT_FALSE(model.parameters().empty()) << name;
    EXPECT_TRUE(model.parameters().front().tensor.is_meta()) << name;
  }
  EXPECT_TRUE(says(error_message_of([] { meta_model("vgg16", 5, 0); }), "no vocabulary"));
  EXPECT_TRUE(says(error_message_of([] { meta_model("bert-base", 0, 5); }), "no classes"));
  const ModelHandle bert(meta_model("bert-base", 21128, 0));
  EXPECT_EQ(bert.parameters().front().tensor.size(0), 21128);
}

TEST_F(ConvertTest, InspectsWithoutLoading) {
  write_safetensors(
      path("a"),
      {{"w", torch::arange(6, torch::kFloat).reshape({2, 3})}, {"clear\x1b[2J", torch::arange(1)}},
      {{"format", "pt"}});
  const std::string text = output_of({"inspect", path("a")});
  EXPECT_TRUE(says(text, "w             F32    [2, 3]            24\n",
                   "2 tensors, 7 numbers, 32 B", "format: pt"));
  EXPECT_EQ(text.find('\x1b'), text.npos);
  EXPECT_EQ(output_of({"convert", "--inspect", path("a")}), text);
}

TEST_F(ConvertTest, FolderOfSnapshotsIsToldWithItsNewestFile) {
  EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                     output_of({"inspect", path("")});
                   }),
                   "is a folder", "name a safetensors file"));
  for (const auto* step : {"step-00000010", "step-00000005"}) {
    std::filesystem::create_directory(path(step));
    write_safetensors(std::filesystem::path(path(step)) / "model.safetensors",
                      {{"w", torch::arange(1)}}, {});
  }
  EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                     output_of({"inspect", path("")});
                   }),
                   "is a folder", "name a file of it: ", "step-00000010/model.safetensors"));
}

TEST_F(ConvertTest, InspectAndConvertAreTwoCommands) {
  write_safetensors(path("a"), {{"w", torch::arange(1)}}, {});
  EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                     output_of({"convert", "--inspect", path("a"), "--to", path("b")});
                   }),
                   "--inspect lists a file and does nothing else"));
}

TEST_F(ConvertTest, ExplainsACommandLineThatIsNone) {
  EXPECT_TRUE(says(error_message_of<UsageError>([] { output_of({}); }), "no command"));
  EXPECT_TRUE(
      says(error_message_of<UsageError>([] { output_of({"convrt"}); }), "did you mean 'convert'?"));
  EXPECT_TRUE(says(error_message_of<UsageError>([] { output_of({"convert"}); }),
                   "--model is missing", "--from is missing"));
  EXPECT_TRUE(says(error_message_of<UsageError>([] { output_of({"inspect"}); }), "no file"));
  EXPECT_TRUE(says(error_message_of<UsageError>([] {
                     output_of({"convert", "--model", "bert-larg"});
                   }),
                   "fleet convert cannot start", "bert-large"));
  EXPECT_TRUE(
      says(error_message_of<HelpRequested>([] { output_of({"--help"}); }), "convert", "inspect"));
  for (const auto& command : commands()) {
    EXPECT_TRUE(says(error_message_of<HelpRequested>([&] {
                       output_of({std::string(command.name), "--help"});
                     }),
                     "fleet " + std::string(command.name) + ": ", "Examples:"));
  }
}

}  // namespace
}  // namespace fleet::tool
