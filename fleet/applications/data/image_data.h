// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "fleet/core/options/options.h"
#include "fleet/data/data_loader.h"
#include "fleet/train/program/train_config.h"

namespace fleet::applications {

/// Which images a program trains on, from its command line.
struct ImageDataOptions {
  std::string data = "synthetic";
  int64_t image_size = 0;
  int64_t classes = 0;
  int64_t samples = 1280;

  /// With the sizes that belong to the data instead of 0.
  ImageDataOptions resolved() const;
};

const FieldList& fields_of(const ImageDataOptions*);

/// Images to train on and images to test with; each rank gets its shard.
struct ImageData {
  DataLoader<Batch> train;
  DataLoader<Batch> test;
};

/// `options.data` is "synthetic" (synthetic_data.h), "fashion_mnist" (Debian's package, as colour
/// images), or a folder with the guide's lists train.txt and val.txt, or with the folders train and
/// val of a folder per class (imagenet.h).
///
///   auto data = load_image_data(options.resolved(), config);
ImageData load_image_data(const ImageDataOptions& options, const TrainConfig& config);

}  // namespace fleet::applications
