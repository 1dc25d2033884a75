// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/fashion_mnist.h"

#include <algorithm>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/formats/idx_file.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 28;
constexpr int64_t kClasses = 10;

// The package ships .gz; a user's own copy may be unpacked.
fs::path find_file(const fs::path& dir, const std::string& name) {
  for (const fs::path& candidate : {dir / (name + ".gz"), dir / name}) {
    std::error_code ignored;
    if (fs::exists(candidate, ignored)) return candidate;
  }
  throw UsageError("data", format("Fashion-MNIST is not in {}: no {}.gz there", dir.string(), name),
                   format("apt-get install dataset-fashion-mnist, or name the folder that holds it "
                          "(the package's: {})",
                          kFashionMnistDir));
}

void check_labels(const torch::Tensor& labels, const fs::path& path) {
  const auto* begin = labels.const_data_ptr<uint8_t>();
  const auto* end = begin + labels.numel();
  const auto* wrong = std::find_if(begin, end, [](uint8_t label) { return label >= kClasses; });
  if (wrong == end) return;
  throw UsageError("data",
                   format("{}: label {} of sample {} is outside 0..{}", path.string(), *wrong,
                          wrong - begin, kClasses - 1),
                   "fetch the file again; it is damaged or of another data set");
}

}  // namespace

std::shared_ptr<const InMemoryImages> load_fashion_mnist(const fs::path& dir, Phase phase,
                                                         Augmentation augmentation) {
  const std::string prefix = phase == Phase::kTrain ? "train" : "t10k";
  const fs::path images_path = find_file(dir, prefix + "-images-idx3-ubyte");
  const fs::path labels_path = find_file(dir, prefix + "-labels-idx1-ubyte");
  const auto images = read_idx_file(images_path);
  const auto labels = read_idx_file(labels_path);

  std::vector<std::string> problems;
  if (images.dim() != 3 || images.size(1) != kSide || images.size(2) != kSide) {
    problems.push_back(
        format("{}: not a list of {} x {} images", images_path.string(), kSide, kSide));
  }
  if (labels.dim() != 1) {
    problems.push_back(format("{}: not a plain list of labels", labels_path.string()));
  }
  if (images.size(0) != labels.size(0)) {
    problems.push_back(format("{} holds {} images but {} holds {} labels", images_path.string(),
                              images.size(0), labels_path.string(), labels.size(0)));
  }
  if (!problems.empty()) {
    throw UsageError::all("data", "this is not Fashion-MNIST", problems,
                          "take both files from the same data set");
  }
  check_labels(labels, labels_path);
  return std::make_shared<InMemoryImages>(images, labels.to(torch::kInt64), kFashionMnistStatistics,
                                          augmentation);
}

}  // namespace fleet
