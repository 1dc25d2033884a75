// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "fleet/data/data_loader.h"
#include "fleet/data/phase.h"

namespace fleet {

/// How a list or folder of JPEG images is read.
struct ImagenetOptions {
  int64_t batch_size = 32;  ///< samples per update on one rank
  Phase phase = Phase::kTrain;
  std::optional<bool> shuffle = {};  ///< unset: for training only
  int64_t image_size = 224;          ///< of the square that the model gets, in pixels
  int64_t seed = 0;
  int64_t num_classes = 1000;       ///< labels are below this
  std::filesystem::path root = {};  ///< of the list's paths; unset: looked for (image_list.h)
  double min_area = 0.08;           ///< least fraction of an image in a training crop
  int64_t short_side = 0;           ///< of the whole image in a test; 0: 256 for 224
  bool flip = true;                 ///< half of the training crops, left and right swapped
  std::array<double, 3> mean = {0.485, 0.456, 0.406};  ///< of red, green and blue in 0..1
  std::array<double, 3> std = {0.229, 0.224, 0.225};
  bool channels_last = true;         ///< the memory layout of the images; their shape is the same
  bool drop_last = false;            ///< leave out the samples that do not fill a global batch
  std::optional<int64_t> rank = {};  ///< unset, with world_size: of fleet::init (shard.h)
  std::optional<int64_t> world_size = {};  ///< 1 alone: every rank takes all samples
  int64_t threads = 0;                     ///< that decode; 0: as many as LibTorch (cores per rank)
  int64_t prefetch = 2;                    ///< batches loaded ahead; 0: none
  double max_broken_ratio = 0.01;  ///< fraction of the images; more broken ones are an Error
};

/// JPEG images and their labels, from the guide's list ("path label" on each line) or from a folder
/// with a folder per class.
///
/// Batches are float N x 3 x S x S, normalised, and int64 N. In training, a random part of each
/// image (area 8 to 100 %, ratio 3/4 to 4/3), scaled to S x S and flipped in half of the draws; in
/// a test, the middle of the image scaled to 256/224 of S. What is drawn follows from (seed, epoch,
/// sample) alone: N ranks with any number of threads see the images of one rank.
///
/// An image that cannot be decoded is named once in the log and left out: its batch is shorter by
/// one, so that all ranks keep making the same number of updates.
///
///   auto loader = fleet::load_imagenet_from_file("ImageNet/train.txt", {.batch_size = 64});
///   for (int64_t epoch = 0; epoch < 90; ++epoch)
///     for (const fleet::Batch& batch : loader) train_on(batch);
DataLoader<Batch> load_imagenet_from_file(const std::filesystem::path& list,
                                          const ImagenetOptions& options = {});

}  // namespace fleet
