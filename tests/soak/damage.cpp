// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <random>

#include "fleet/core/text/format.h"
#include "fleet/snapshot/snapshot_folder.h"

#include "tests/data/temporary_folder.h"
#include "tests/snapshot/snapshot_training.h"
#include "tests/soak/soak.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;
using fleet::testing::Outcome;
using fleet::testing::TrainingRank;

constexpr int64_t kOlder = 4, kNewer = 8, kEnd = 10;

TrainingRank new_training() {
  return TrainingRank({.optimizer = "Adam", .dropout = 0.1},
                      std::make_shared<comm::Communicator>());
}

// From `begin` to the end; saves on the way if there is a folder.
Outcome finish(TrainingRank& rank, int64_t begin, const fs::path& dir = {}) {
  for (int64_t step = begin; step < kEnd; ++step) {
    rank.train(step, step + 1);
    if (!dir.empty() && (step + 1 == kOlder || step + 1 == kNewer))
      save_snapshot(dir, rank.optimizer());
  }
  return rank.outcome();
}

bool are_equal(const Outcome& a, const Outcome& b) {
  const auto same = [](const auto& x, const auto& y) { return torch::equal(x, y); };
  return a.losses == b.losses && std::ranges::equal(a.parameters, b.parameters, same) &&
         std::ranges::equal(a.buffers, b.buffers, same);
}

/// Flips a bit of a random file, or cuts it short; returns which.
std::string damage(const fs::path& folder, std::mt19937_64& random) {
  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(folder)) files.push_back(item.path());
  std::sort(files.begin(), files.end());
  const auto file = files[random() % files.size()];
  const auto bytes = fs::file_size(file);
  const auto at = random() % bytes;
  if (random() % 2 == 0) {
    fs::resize_file(file, at);
    return format("{} cut to {} of {} bytes", file.filename().string(), at, bytes);
  }
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const auto byte = static_cast<char>(stream.get() ^ (1 << random() % 8));
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(byte);
  return format("{} with another bit in byte {}", file.filename().string(), at);
}

}  // namespace

Row soak_damage(const SoakOptions& options) {
  const TemporaryFolder intact;
  auto undisturbed = new_training();
  const auto expected = finish(undisturbed, 0, intact.path());
  std::mt19937_64 random(static_cast<uint64_t>(options.seed));
  int noticed = 0, harmless = 0;
  auto problems = Row::array();
  for (int i = 0; i < options.count; ++i) {
    const TemporaryFolder copy;
    fs::copy(intact.path(), copy.path(), fs::copy_options::recursive);
    const auto what = damage(snapshot_folder(copy.path(), kNewer), random);
    try {
      auto rank = new_training();
      const auto step = load_snapshot(copy.path(), rank.optimizer());
      const bool is_one = step == kOlder || step == kNewer;
      if (!is_one || !are_equal(finish(rank, *step), expected)) {
        problems.push_back(format("{}: resumed from {}, other digits", what, step.value_or(-1)));
      }
      ++(step == kOlder ? noticed : harmless);
    } catch (const std::exception& error) {
      problems.push_back(format("{}: {}", what, error.what()));
    }
  }
  return {{"setup", "newest of two snapshots: a bit flipped or a file cut short"},
          {"tried", options.count},
          {"noticed_and_resumed_from_the_one_before", noticed},
          {"harmless_with_equal_digits", harmless},
          {"problems", problems}};
}

}  // namespace fleet::launch
