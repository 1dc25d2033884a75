// SPDX-License-Identifier: Apache-2.0
#include "fleet/precision/autocast.h"

#include <algorithm>
#include <utility>

#include <ATen/autocast_mode.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"

namespace fleet::precision {
namespace {

constexpr std::array kDevices = {at::kCPU, at::kCUDA};

// Names that people bring along from Paddle, and LibTorch's op that does the same.
constexpr std::pair<std::string_view, std::string_view> kPaddleNames[] = {
    {"cross_entropy", "cross_entropy_loss"},
    {"cross_entropy2", "cross_entropy_loss"},
    {"elementwise_add", "add"},
    {"elementwise_div", "div"},
    {"elementwise_mul", "mul"},
    {"elementwise_sub", "sub"},
    {"lookup_table", "embedding"},
    {"lookup_table_v2", "embedding"},
    {"matmul_v2", "matmul"},
    {"pool2d", "max_pool2d"},
    {"reduce_mean", "mean"},
    {"reduce_sum", "sum"},
    {"sigmoid_cross_entropy_with_logits", "binary_cross_entropy_with_logits"},
    {"softmax_with_cross_entropy", "cross_entropy_loss"},
};

std::string suggestion(const std::string& op, const std::vector<std::string>& known) {
  for (const auto& [paddle, engine] : kPaddleNames) {
    if (op == paddle) return format(" (Paddle's name; LibTorch's is '{}')", engine);
  }
  auto usual = known;  // without what is internal to LibTorch or works in place
  std::erase_if(usual,
                [](const std::string& name) { return name.front() == '_' || name.back() == '_'; });
  return did_you_mean(op, usual);
}

void check_list(std::string_view list, const std::vector<std::string>& ops,
                const std::vector<std::string>& known, std::vector<std::string>& problems) {
  for (const auto& op : ops) {
    if (!std::ranges::binary_search(known, op)) {
      problems.push_back(format("{}: LibTorch has no op '{}'{}", list, op, suggestion(op, known)));
    } else if (const auto why = compat::why_not_castable(op); !why.empty()) {
      problems.push_back(format("{}: the precision of '{}' cannot be chosen: {}", list, op, why));
    }
  }
}

void check(const AutocastOptions& options) {
  std::vector<std::string> problems;
  if (options.dtype != torch::kBFloat16 && options.dtype != torch::kHalf) {
    problems.push_back(format("dtype {} is no low precision; take torch::kBFloat16 or torch::kHalf",
                              c10::toString(options.dtype)));
  }
  if (!options.custom_white_list.empty() || !options.custom_black_list.empty()) {
    const auto known = compat::op_names();
    check_list("custom_white_list", options.custom_white_list, known, problems);
    check_list("custom_black_list", options.custom_black_list, known, problems);
  }
  for (const auto& op : options.custom_white_list) {
    if (std::ranges::count(options.custom_black_list, op) != 0) {
      problems.push_back(format(
          "'{}' is in custom_white_list and in custom_black_list, so its precision is open", op));
    }
  }
  if (!problems.empty()) {
    throw UsageError::all("amp", "these options do not work:", problems,
                          "ops have LibTorch's names without namespace: softmax, layer_norm, gelu");
  }
}

const AutocastOptions& checked(const AutocastOptions& options) {
  check(options);
  return options;
}

}  // namespace

Autocast::Autocast(const AutocastOptions& options)
    : dtype_(checked(options).dtype),
      rules_(options.custom_white_list, options.custom_black_list) {}

AutocastScope::AutocastScope(const Autocast* autocast) {
  if (autocast == nullptr) return;
  rules_.emplace(autocast->rules_);
  for (size_t i = 0; i < kDevices.size(); ++i) {
    previous_[i] = {at::autocast::is_autocast_enabled(kDevices[i]),
                    at::autocast::get_autocast_dtype(kDevices[i])};
    changes_dtype_ |= previous_[i].enabled && previous_[i].dtype != autocast->dtype_;
    at::autocast::set_autocast_enabled(kDevices[i], true);
    at::autocast::set_autocast_dtype(kDevices[i], autocast->dtype_);
  }
  at::autocast::increment_nesting();
  // LibTorch's store of cast weights does not know for which type they were cast.
  if (changes_dtype_) at::autocast::clear_cache();
}

AutocastScope::~AutocastScope() {
  if (!rules_) return;
  if (at::autocast::decrement_nesting() == 0 || changes_dtype_) at::autocast::clear_cache();
  for (size_t i = 0; i < kDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kDevices[i], previous_[i].enabled);
    at::autocast::set_autocast_dtype(kDevices[i], previous_[i].dtype);
  }
}

}  // namespace fleet::precision
