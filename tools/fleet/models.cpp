// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/models.h"

#include "fleet/applications/applications.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::tool {

std::shared_ptr<torch::nn::Module> meta_model(const std::string& name, int64_t vocab,
                                              int64_t classes) {
  const auto [application, preset] = applications::preset_named(name);
  const bool has_vocab = application.samples == applications::SampleKind::kTokens;
  if ((has_vocab ? classes : vocab) > 0) {
    throw UsageError("convert", format("{} has no {}", name, has_vocab ? "classes" : "vocabulary"),
                     format("use --{}", has_vocab ? "vocab" : "classes"));
  }
  return preset.make({.outputs = has_vocab ? vocab : classes, .device = torch::kMeta}).module;
}

}  // namespace fleet::tool
