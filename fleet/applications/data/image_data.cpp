// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/data/image_data.h"

#include <algorithm>
#include <filesystem>

#include "fleet/applications/data/synthetic_data.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/images/colour_images.h"
#include "fleet/data/images/fashion_mnist.h"
#include "fleet/data/images/imagenet.h"

namespace fleet::applications {
namespace {

constexpr int64_t kFashionMnistSide = 28;
constexpr int64_t kFashionMnistClasses = 10;

LoaderOptions loader_options(const TrainConfig& config, Phase phase) {
  return {.batch_size = config.batch_size, .seed = config.seed, .shuffle = phase == Phase::kTrain};
}

DataLoader<Batch> synthetic(const ImageDataOptions& options, const TrainConfig& config,
                            Phase phase) {
  SampleRange range{.first = 0, .count = options.samples};
  if (phase == Phase::kTest) {
    range = {.first = options.samples, .count = std::max<int64_t>(1, options.samples / 5)};
  }
  return {synthetic_images(options.classes, options.image_size, range),
          loader_options(config, phase)};
}

DataLoader<Batch> fashion_mnist(const ImageDataOptions& options, const TrainConfig& config,
                                Phase phase) {
  if (options.image_size % kFashionMnistSide != 0) {
    throw UsageError("data",
                     format("Fashion-MNIST's images have {0} x {0} pixels and are scaled by whole "
                            "numbers, not to {1}",
                            kFashionMnistSide, options.image_size),
                     format("use --image_size {} or {}", kFashionMnistSide, 2 * kFashionMnistSide));
  }
  if (options.classes < kFashionMnistClasses) {
    throw UsageError("data",
                     format("Fashion-MNIST has {} classes, and the model {}", kFashionMnistClasses,
                            options.classes),
                     "leave --classes out");
  }
  Augmentation augmentation;
  if (phase == Phase::kTrain) augmentation = {.flip = true, .max_shift = 2, .seed = config.seed};
  return {std::make_shared<ColourImages>(load_fashion_mnist(kFashionMnistDir, phase, augmentation),
                                         options.image_size / kFashionMnistSide),
          loader_options(config, phase)};
}

DataLoader<Batch> files(const ImageDataOptions& options, const TrainConfig& config, Phase phase) {
  const std::filesystem::path folder = options.data;
  const std::string name = phase == Phase::kTrain ? "train" : "val";
  const auto list = folder / (name + ".txt");
  return load_imagenet_from_file(std::filesystem::exists(list) ? list : folder / name,
                                 {.batch_size = config.batch_size,
                                  .phase = phase,
                                  .image_size = options.image_size,
                                  .seed = config.seed,
                                  .num_classes = options.classes});
}

}  // namespace

ImageDataOptions ImageDataOptions::resolved() const {
  ImageDataOptions out = *this;
  const bool is_fashion_mnist = data == "fashion_mnist";
  if (image_size == 0) out.image_size = is_fashion_mnist ? kFashionMnistSide : 224;
  if (classes == 0)
    out.classes = is_fashion_mnist || data == "synthetic" ? kFashionMnistClasses : 1000;
  return out;
}

const FieldList& fields_of(const ImageDataOptions*) {
  using D = ImageDataOptions;
  static const FieldList list{
      .area = "data",
      .fields = {
          field<&D::data>("data",
                          "synthetic, fashion_mnist, or a folder with train.txt and val.txt"),
          field<&D::image_size>("image_size",
                                "side of the input images; 0: 224, 28 for fashion_mnist")
              .at_least(0)
              .in_unit("pixels"),
          field<&D::classes>("classes",
                             "number of classes; 0: 1000, 10 for synthetic and fashion_mnist")
              .at_least(0),
          field<&D::samples>("samples", "synthetic samples to train on; a fifth more to test with")
              .at_least(1)
              .at_most(kMaxSyntheticSamples)
              .in_unit("images"),
      }};
  return list;
}

ImageData load_image_data(const ImageDataOptions& options, const TrainConfig& config) {
  const auto load = options.data == "synthetic"       ? synthetic
                    : options.data == "fashion_mnist" ? fashion_mnist
                                                      : files;
  return {load(options, config, Phase::kTrain), load(options, config, Phase::kTest)};
}

}  // namespace fleet::applications
