// SPDX-License-Identifier: Apache-2.0
// From JPEG files to normalised batches: Fleet's loader beside PyTorch's with Pillow.
#include <cstdlib>
#include <filesystem>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/images/imagenet.h"
#include "fleet/data/images/synthetic_images.h"

#include "bench/benches.h"
#include "bench/python_peer.h"

namespace fleet::bench {
namespace {

constexpr int64_t kImages = 200;
constexpr int64_t kBatch = 50;
constexpr int kRounds = 5;

// Photographs as ImageNet's are on average: 500 x 375 pixels in 100 KB.
class Photographs {
 public:
  Photographs() {
    std::string name = (std::filesystem::temp_directory_path() / "fleet-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error("bench", "cannot make a folder for images");
    folder_ = name;
    write_synthetic_images(images(), {.classes = 10, .per_class = kImages / 10});
  }
  ~Photographs() { std::filesystem::remove_all(folder_); }
  Photographs(const Photographs&) = delete;
  Photographs& operator=(const Photographs&) = delete;

  std::filesystem::path images() const { return folder_ / "images"; }

 private:
  std::filesystem::path folder_;
};

// One pass; nothing is made ahead, so that `threads` are all that work.
void pass(DataLoader<>& loader) {
  int64_t got = 0;
  for (const Batch& batch : loader) got += batch.size();
  if (got != kImages) throw Error("bench", format("{} of {} images came", got, kImages));
}

void pass(PythonPeer& peer, const std::string& what) {
  const auto answer = peer.ask(what);
  if (answer != std::to_string(kImages)) throw Error("bench", "the peer says " + answer);
}

double per_second(const Timing& timing) { return kImages / timing.best(); }

}  // namespace

std::vector<Row> bench_images() {
  const Photographs photographs;
  PythonPeer peer(FLEET_IMAGES_PEER, {photographs.images().string(), std::to_string(kBatch)});
  std::vector<Row> rows;
  for (const Phase phase : {Phase::kTrain, Phase::kTest}) {
    const std::string name = phase == Phase::kTrain ? "train" : "test";
    const auto loader_with = [&](int64_t threads) {
      return load_imagenet_from_file(photographs.images(), {.batch_size = kBatch,
                                                            .phase = phase,
                                                            .shuffle = true,
                                                            .threads = threads,
                                                            .prefetch = 0});
    };
    auto one = loader_with(1);
    auto two = loader_with(2);
    std::vector<std::function<void()>> works = {[&] { pass(one); }, [&] { pass(two); }};
    if (peer.is_available()) {
      works.emplace_back([&] { pass(peer, name + " 1"); });
      works.emplace_back([&] { pass(peer, name + " 0"); });
    }
    const auto timings = alternate(kRounds, works);
    const auto add = [&](const std::string& threads, size_t own, const std::string& other,
                         size_t theirs) {
      rows.push_back({format("{} crops of 224, {}", name, threads), per_second(timings[own]),
                      "img/s", other, per_second(timings[theirs]),
                      timings[theirs].best() / timings[own].best(),
                      format("{} | peer {}", timings[own].spread(), timings[theirs].spread())});
    };
    if (peer.is_available()) {
      add("one thread", 0, "PyTorch + Pillow, one worker", 2);
      add("one thread", 0, "PyTorch + Pillow, no worker", 3);
    }
    add("two threads", 1, "one thread", 0);
  }
  return rows;
}

}  // namespace fleet::bench
