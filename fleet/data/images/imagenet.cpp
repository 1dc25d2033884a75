// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/imagenet.h"

#include "fleet/data/images/image_files.h"

namespace fleet {

DataLoader<Batch> load_imagenet_from_file(const std::filesystem::path& list,
                                          const ImagenetOptions& options) {
  auto images = std::make_shared<ImageFiles>(list, options);
  return {std::move(images),
          {.batch_size = options.batch_size,
           .seed = options.seed,
           .shuffle = options.shuffle.value_or(options.phase == Phase::kTrain),
           .drop_last = options.drop_last,
           .rank = options.rank,
           .world_size = options.world_size,
           .prefetch = options.prefetch}};
}

}  // namespace fleet
