// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/models.h"

#include "fleet/applications/bert.h"
#include "fleet/applications/resnet.h"
#include "fleet/applications/transformer.h"
#include "fleet/applications/vgg.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::tool {
namespace {

namespace apps = applications;
using Module = std::shared_ptr<torch::nn::Module>;

Module bert(apps::BertOptions options, int64_t vocab) {
  if (vocab > 0) options.vocab = vocab;
  options.device = torch::kMeta;
  return apps::Bert(options).ptr();
}

Module transformer(apps::TransformerOptions options, int64_t vocab) {
  if (vocab > 0) options.source_vocab = options.target_vocab = vocab;
  options.device = torch::kMeta;
  return apps::Transformer(options).ptr();
}

// Number of classes and all: what a preset is made of, but for the size that was asked for.
template <typename Application>
Module with_classes(const Application& preset, int64_t classes) {
  if (classes == 0) return preset.ptr();
  auto options = preset.options();
  options.classes = classes;
  return Application(options).ptr();
}

struct Model {
  std::string_view name;
  bool has_vocab;
  Module (*make)(int64_t size);  // vocabulary or classes; 0: the model's own
};

constexpr Model kModels[] = {
    {"bert-base", true, [](int64_t n) { return bert({}, n); }},
    {"bert-large", true, [](int64_t n) { return bert(apps::bert_large_options(), n); }},
    {"resnet18", false,
     [](int64_t n) { return with_classes(apps::Resnet18({.device = torch::kMeta}), n); }},
    {"resnet50", false,
     [](int64_t n) { return with_classes(apps::Resnet50({.device = torch::kMeta}), n); }},
    {"resnet101", false,
     [](int64_t n) { return with_classes(apps::Resnet101({.device = torch::kMeta}), n); }},
    {"resnet152", false,
     [](int64_t n) { return with_classes(apps::Resnet152({.device = torch::kMeta}), n); }},
    {"vgg16", false,
     [](int64_t n) { return with_classes(apps::VGG16({.device = torch::kMeta}), n); }},
    {"vgg16-bn", false,
     [](int64_t n) {
       return with_classes(apps::VGG16({.batch_norm = true, .device = torch::kMeta}), n);
     }},
    {"transformer-base", true, [](int64_t n) { return transformer({}, n); }},
    {"transformer-big", true,
     [](int64_t n) { return transformer(apps::transformer_big_options(), n); }},
};

}  // namespace

std::vector<std::string_view> model_names() {
  std::vector<std::string_view> names;
  for (const auto& model : kModels) names.push_back(model.name);
  return names;
}

Module model_without_numbers(const std::string& name, int64_t vocab, int64_t classes) {
  for (const auto& model : kModels) {
    if (model.name != name) continue;
    if ((model.has_vocab ? classes : vocab) > 0) {
      throw UsageError("convert",
                       format("{} has no {}", name, model.has_vocab ? "classes" : "vocabulary"),
                       format("use --{}", model.has_vocab ? "vocab" : "classes"));
    }
    return model.make(model.has_vocab ? vocab : classes);
  }
  FLEET_ASSERT(false, "no model " + name);
  return nullptr;
}

}  // namespace fleet::tool
