// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

namespace torch::nn {
class Module;
}

namespace fleet::tool {

/// One of applications::preset_names() on the meta device: names and shapes, no numbers. `vocab`
/// and `classes` take the place of the model's own when above 0; a model without such a size
/// refuses them.
std::shared_ptr<torch::nn::Module> meta_model(const std::string& name, int64_t vocab,
                                              int64_t classes);

}  // namespace fleet::tool
