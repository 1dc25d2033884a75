// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/environment_options.h"

#include <cctype>
#include <cstdlib>

#include "fleet/core/log.h"
#include "fleet/core/options/options_json.h"
#include "fleet/core/text/format.h"

namespace fleet::applications {
namespace {

std::string variable_of(const FieldList& list) {
  std::string name = "FLEET_";
  for (const char letter : list.area) {
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return name + "_OPTIONS";
}

std::vector<std::string> texts_of(OptionsView options) {
  std::vector<std::string> texts;
  for (const auto& leaf : leaves(options)) texts.push_back(to_text(leaf.value()));
  return texts;
}

}  // namespace

void apply_environment(OptionsRef options) {
  const auto variable = variable_of(*options.list);
  const char* text = std::getenv(variable.c_str());
  if (text == nullptr) return;
  const auto before = texts_of(options);
  read_json(options, text, variable);
  const auto after = leaves(OptionsView(options));
  std::string changes;
  for (size_t i = 0; i < after.size(); ++i) {
    const auto now = to_text(after[i].value());
    if (now == before[i]) continue;
    changes +=
        format("{}{} {} instead of {}", changes.empty() ? "" : ", ", after[i].path, now, before[i]);
  }
  if (!changes.empty()) log::info(options.list->area, format("{}: {}", variable, changes));
}

}  // namespace fleet::applications
