// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/tape/op_record.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include "fleet/core/torch/interception.h"

namespace fleet::memory {
namespace {

bool takes_generator(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    const auto optional = argument.type()->cast<c10::OptionalType>();
    const auto type = optional ? optional->getElementType() : argument.type();
    return type->kind() == c10::TypeKind::GeneratorType;
  });
}

// Of an op that is not in the table: assumed of those outside of aten.
bool uses_rng(const c10::OperatorHandle& op, OpProperties::Randomness randomness) {
  if (randomness != OpProperties::Randomness::kUnknown) {
    return randomness == OpProperties::Randomness::kGenerator;
  }
  return !op.schema().name().starts_with("aten::") || op.hasTag(at::Tag::nondeterministic_seeded) ||
         takes_generator(op.schema());
}

OpTraits traits_from(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  OpTraits traits;
  traits.name = schema.name();
  traits.results = schema.returns().size();
  for (const auto& argument : schema.arguments()) {
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    traits.writes |= written;
    traits.arguments.push_back(
        {.written = written,
         .statistics = argument.name() == "running_mean" || argument.name() == "running_var"});
  }
  traits.has_statistics = std::ranges::any_of(
      traits.arguments, [](const OpTraits::Argument& argument) { return argument.statistics; });
  for (const auto& result : schema.returns()) {
    traits.is_view |= result.alias_info() && !result.alias_info()->isWrite();
  }
  const auto separator = traits.name.find("::");
  const auto name = traits.name.substr(separator + 2);
  const auto properties = op_properties(traits.name);
  traits.uses_rng = uses_rng(op, properties.randomness);
  traits.flops = properties.flops;
  traits.mask_save = properties.mask_save;
  traits.is_factory = name.starts_with("new_") || name.ends_with("_like");
  traits.changes_storage = name == "set_" || name == "resize_" || name == "resize_as_" ||
                           name == "set_data" || name == "swap_";
  traits.is_decomposed = properties.is_decomposed && compat::is_composite(op);
  return traits;
}

}  // namespace

const OpTraits& OpTraits::of(const c10::OperatorHandle& op) {
  // Cached by thread, so that the lock is only taken for an op that the thread has not called yet.
  thread_local std::unordered_map<const c10::FunctionSchema*, const OpTraits*> met;
  auto& known = met[&op.schema()];
  if (!known) {
    static std::mutex mutex;
    static auto& all =
        *new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OpTraits>>();
    const std::scoped_lock lock(mutex);
    auto& traits = all[&op.schema()];
    if (!traits) traits = std::make_unique<OpTraits>(traits_from(op));
    known = traits.get();
  }
  return *known;
}

OpRecord::OpRecord(int number, const c10::OperatorHandle& handle, const OpTraits& what)
    : index(number),
      op(std::make_unique<c10::OperatorHandle>(handle)),
      traits(&what),
      state(compat::CallState::now()) {}

OpRecord::~OpRecord() = default;

std::shared_ptr<OpRecord> OpRecord::mask_only() const {
  auto record = std::make_shared<OpRecord>(index, *op, *traits);
  record->state = state;
  record->outputs = outputs;
  record->saves = saves;
  record->mask = mask;
  return record;
}

}  // namespace fleet::memory
