// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include "fleet/data/images/in_memory_images.h"
#include "fleet/data/phase.h"

namespace fleet {

/// Where Debian's package dataset-fashion-mnist puts its files.
inline constexpr const char* kFashionMnistDir = "/usr/share/datasets/fashion-mnist";

/// Of the training set's pixels; for data sets made from a part of them.
inline constexpr PixelStatistics kFashionMnistStatistics = {.mean = 0.2860, .std = 0.3530};

/// Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 28 x 28 grey images of 10 kinds of clothing, 60,000
/// to train and 10,000 to test, normalised with the training set's statistics.
///
/// Both files of the phase are read and checked; one that is missing, damaged or inconsistent with
/// the other is a `fleet::Error`.
///
///   auto train = fleet::load_fashion_mnist(fleet::kFashionMnistDir, fleet::Phase::kTrain,
///                                          {.flip = true, .max_shift = 2, .seed = 1});
std::shared_ptr<const InMemoryImages> load_fashion_mnist(const std::filesystem::path& dir,
                                                         Phase phase,
                                                         Augmentation augmentation = {});

}  // namespace fleet
