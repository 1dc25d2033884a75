// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "fleet/applications/application.h"
#include "fleet/data/images/imagenet.h"

namespace fleet::applications {

/// `data` for a model of `classes` classes: labels that it has no score for are refused. `area`
/// names the model in errors.
ImagenetOptions with_classes(ImagenetOptions data, int64_t classes, std::string_view area);

/// An application whose batches are images with labels.
template <typename Impl>
class ImageApplication : public Application<Impl> {
 public:
  using Application<Impl>::Application;

  /// JPEG images for this model, from the guide's list or from a folder per class (imagenet.h).
  /// Labels are below the model's number of classes.
  ///
  ///   auto loader = model.load_imagenet_from_file("ImageNet/train.txt", {.batch_size = 64});
  auto load_imagenet_from_file(const std::filesystem::path& list,
                               const ImagenetOptions& data = {}) const {
    return fleet::load_imagenet_from_file(
        list, with_classes(data, this->options().classes, fields_of(&this->options()).area));
  }
};

}  // namespace fleet::applications
