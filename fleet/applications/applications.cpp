// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/applications.h"

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::applications {

const std::vector<ApplicationEntry>& all_applications() {
  static const std::vector<ApplicationEntry> entries = {
      bert_application(),
      resnet_application(),
      vgg_application(),
      transformer_application(),
  };
  return entries;
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const auto& application : all_applications()) {
    for (const auto& preset : application.presets) names.push_back(preset.name);
  }
  return names;
}

ApplicationPreset preset_named(std::string_view name) {
  for (const auto& application : all_applications()) {
    for (const auto& preset : application.presets) {
      if (preset.name == name) return {application, preset};
    }
  }
  throw UsageError("applications", format("there is no model '{}'", name),
                   "preset_names() has all");
}

}  // namespace fleet::applications
