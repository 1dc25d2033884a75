// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/applications/application_entry.h"
#include "fleet/applications/bert.h"
#include "fleet/applications/resnet.h"
#include "fleet/applications/transformer.h"
#include "fleet/applications/vgg.h"

namespace fleet::applications {

/// In the order in which help texts name them.
const std::vector<ApplicationEntry>& all_applications();

/// "bert-base", "bert-large", "resnet18", ...
std::vector<std::string_view> preset_names();

/// A named model, as `fleet plan` and `fleet convert` know it.
struct ApplicationPreset {
  const ApplicationEntry& application;
  const Preset& preset;
};
/// One of `preset_names()`.
///
///   const auto [application, preset] = preset_named("resnet50");
///   const auto model = preset.make({.device = torch::kMeta});
ApplicationPreset preset_named(std::string_view name);

}  // namespace fleet::applications
