// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fleet/data/dataset.h"
#include "fleet/data/images/image_list.h"
#include "fleet/data/images/imagenet.h"
#include "fleet/data/worker_pool.h"

namespace fleet {

/// JPEG files, decoded on demand: the data set of `load_imagenet_from_file` (imagenet.h).
///
/// An image is decoded at the smallest of 1/1, 1/2, 1/4 and 1/8 that leaves the crop at least as
/// large as the model's image, and only as far as the crop goes.
///
///   auto images = std::make_shared<ImageFiles>("train.txt", options);
///   Batch batch = images->get(indices, epoch);
class ImageFiles : public Dataset {
 public:
  ImageFiles(const std::filesystem::path& list, const ImagenetOptions& options);
  ~ImageFiles() override;

  int64_t size() const override { return list_.size(); }
  int64_t fingerprint() const override { return list_.fingerprint(); }
  /// Without those that cannot be decoded.
  Batch get(std::span<const int64_t> indices, int64_t epoch) const override;

  const ImageList& list() const { return list_; }
  /// Images found broken so far.
  int64_t broken() const;

 private:
  class Worker;

  void report(int64_t index, const std::string& why) const;

  ImagenetOptions options_;
  ImageList list_;
  mutable WorkerPool pool_;
  std::vector<std::unique_ptr<Worker>> workers_;  // one per thread of the pool
  mutable std::mutex mutex_;                      // guards broken_
  mutable std::vector<int64_t> broken_;           // in the order of discovery
};

}  // namespace fleet
