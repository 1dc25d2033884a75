// SPDX-License-Identifier: Apache-2.0
// Loaders in real ranks: programs that say nothing about ranks, and batches of a user's own type.

#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"
#include "fleet/data/formats/token_file.h"

#include "tests/data/idx_bytes.h"
#include "tests/data/jpeg_pictures.h"
#include "tests/data/temporary_folder.h"
#include "tests/ranks/ranks.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

constexpr int64_t kSamples = 13;

// What the ranks told, by loader; `samples` in the order of the ranks.
using Told = std::map<std::string, std::multiset<std::string>>;

Words data_job(int ranks, const Words& arguments) {
  Words words = {format("--nproc_per_node={}", ranks), beside("test_data_program")};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

class LoaderRanksTest : public testing::Test {
 protected:
  // Each sample of a file has something that no other has: its label, or its words.
  void write_files() const {
    std::string list;
    for (int64_t i = 0; i < kSamples; ++i) {
      folder_.write(format("{}.jpg", i), as_text(jpeg_of_waves(20 + i, 30)));
      list += format("{}.jpg {}\n", i, i);
    }
    folder_.write("list.txt", list);
    for (const std::string name : {"train", "t10k"}) {  // ten classes, and a sample of each
      std::string labels;
      for (char label = 0; label < 10; ++label) labels += label;
      folder_.write(name + "-labels-idx1-ubyte", idx_header({10}) + labels);
      folder_.write(name + "-images-idx3-ubyte",
                    idx_header({10, 28, 28}) + std::string(10 * 28 * 28, '\7'));
    }
    std::vector<std::string> tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    for (int64_t i = 0; i < kSamples; ++i) tokens.push_back(format("w{}", i));
    const Vocabulary vocabulary(tokens);
    vocabulary.save(folder_.path() / "vocab.txt");
    TokenFile file(folder_.path() / "tokens", vocabulary);
    std::string pairs;
    for (int64_t i = 0; i < kSamples; ++i) {
      file.write(std::vector<int64_t>(3, 5 + i), std::vector<int64_t>(2, 5 + i));
      pairs += format("w{}\n", i);
    }
    file.finish();
    folder_.write("pairs.src", pairs);
    folder_.write("pairs.tgt", pairs);
  }

  Told told_by(int ranks) const {
    Launched program(data_job(ranks, {"once", folder_.path().string()}));
    EXPECT_EQ(program.wait(std::chrono::seconds(60)), 0) << program.output();
    Told told;
    for (int rank = 0; rank < ranks; ++rank) {
      std::istringstream lines(program.log(rank));
      for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string name, key, rest;
        if (words >> name >> key && !(words >> rest) && name[0] != '[') told[name].insert(key);
      }
    }
    return told;
  }

  TemporaryFolder folder_;
};

TEST_F(LoaderRanksTest, EverySampleComesOncePerEpochWithoutAWordAboutRanks) {
  write_files();
  const auto alone = told_by(1);
  const std::map<std::string, int64_t> sizes = {{"bert", kSamples},
                                                {"bert_program", 20 * kSamples},
                                                {"bert_program_test", kSamples + 1},
                                                {"fashion_mnist", 10},
                                                {"fashion_mnist_test", 10},
                                                {"image_program", 5 * kSamples},
                                                {"image_program_test", kSamples},
                                                {"images", kSamples},
                                                {"images_test", kSamples},
                                                {"in_memory", kSamples},
                                                {"masked_text", kSamples},
                                                {"parallel_text", kSamples},
                                                {"sampler", kSamples},
                                                {"synthetic_images", kSamples},
                                                {"synthetic_text", kSamples},
                                                {"synthetic_translation", kSamples},
                                                {"transformer_program", 20 * kSamples},
                                                {"transformer_program_test", kSamples + 1}};
  for (const auto& [name, size] : sizes) {
    ASSERT_TRUE(alone.contains(name)) << name;
    EXPECT_EQ(std::ssize(alone.at(name)), size) << name;
  }
  EXPECT_EQ(alone.size(), sizes.size());
  for (const auto& name :
       {"images", "in_memory", "fashion_mnist", "masked_text", "parallel_text"}) {
    EXPECT_EQ(std::set<std::string>(alone.at(name).begin(), alone.at(name).end()).size(),
              alone.at(name).size())
        << name << ": no two samples are alike";
  }
  for (const int ranks : {2, 3}) {
    const auto together = told_by(ranks);
    for (const auto& [name, keys] : alone) {
      EXPECT_TRUE(together.contains(name) && together.at(name) == keys)
          << ranks << " ranks, " << name << ": not the samples of one rank, once each";
    }
  }
}

TEST_F(LoaderRanksTest, ALoaderBeforeInitIsRefusedWhereThereAreSeveralRanks) {
  for (const std::string kind : {"loader", "text"}) {
    SCOPED_TRACE(kind);
    Launched ranks(data_job(2, {"before_init", kind}));
    EXPECT_EQ(ranks.wait(), 1);
    EXPECT_TRUE(says(ranks.output(),
                     "error: [data] a loader was made outside of fleet::init() and "
                     "fleet::shutdown() in rank ",
                     " of 2 (RANK, WORLD_SIZE): every rank would train on the same samples",
                     "fix: call fleet::init() before loaders are made"));
    Started alone({beside("test_data_program"), "before_init", kind});
    EXPECT_EQ(alone.wait(), 0) << "one process takes all samples: " << alone.output();
  }
}

// "word UPDATE WORD" of all ranks.
std::multiset<std::string> words_of(const Launched& job, int ranks) {
  std::multiset<std::string> words;
  for (int rank = 0; rank < ranks; ++rank) {
    std::istringstream lines(job.log(rank));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("word ")) words.insert(line);
    }
  }
  return words;
}

TEST_F(LoaderRanksTest, ABatchTypeOfTheUsersOwnIsSharedOutSplitAndResumedInMidEpoch) {
  const auto run = [&](int ranks, const std::string& name, int updates) {
    auto job = std::make_unique<Launched>(
        data_job(ranks, {"own", (folder_.path() / name).string(), std::to_string(updates)}));
    EXPECT_EQ(job->wait(std::chrono::seconds(60)), 0) << job->output();
    return job;
  };
  constexpr int kUpdates = 17;  // epochs of 7, the last of which has 2 samples for 2 ranks
  const auto alone = run(1, "alone", kUpdates);
  const auto straight = run(2, "straight", kUpdates);
  const auto stopped = run(2, "stopped", 10);
  const auto resumed = run(2, "stopped", kUpdates);

  EXPECT_EQ(words_of(*straight, 2), words_of(*alone, 1)) << "the batches of one larger rank";
  EXPECT_EQ(std::ssize(words_of(*alone, 1)), 50 + 50 + 3 * 8);
  const auto one = losses(alone->log(0)), two = losses(straight->log(0));
  ASSERT_EQ(std::ssize(one), kUpdates);
  for (const auto& [step, loss] : one) EXPECT_NEAR(two.at(step), loss, 1e-5) << step;

  EXPECT_EQ(after(resumed->log(0), "resumed"), "10") << resumed->output();
  auto words = words_of(*stopped, 2);
  words.merge(words_of(*resumed, 2));
  EXPECT_EQ(words, words_of(*straight, 2)) << "no sample twice, none left out";
  EXPECT_EQ(after(resumed->log(0), "digest"), after(straight->log(0), "digest"));
  EXPECT_FALSE(after(resumed->log(0), "digest").empty());
}

}  // namespace
}  // namespace fleet::launch
