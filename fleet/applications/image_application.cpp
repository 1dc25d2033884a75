// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/image_application.h"

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::applications {

ImagenetOptions with_classes(ImagenetOptions data, int64_t classes, std::string_view area) {
  const bool is_told = data.num_classes != ImagenetOptions().num_classes;
  if (is_told && data.num_classes > classes) {
    throw UsageError(area,
                     format("the data have {} classes, the model {}", data.num_classes, classes),
                     "build the model with .classes of the data");
  }
  if (!is_told) data.num_classes = classes;
  return data;
}

}  // namespace fleet::applications
