// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/torch/cast_rules.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace fleet::compat {
namespace {

constexpr std::string_view kNamespace = "aten::";

thread_local std::shared_ptr<const CastRules::Table> t_rules;

CastRules::Precision precision_of(size_t op) {
  return t_rules && op < t_rules->size() ? (*t_rules)[op] : CastRules::Precision::kDefault;
}

using Overloads = std::vector<c10::OperatorHandle>;

// LibTorch can list its ops, but not those of one name.
const std::map<std::string, Overloads>& libtorch_ops() {
  static const auto& ops = *[] {
    auto* all = new std::map<std::string, Overloads>();
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (!name.name.starts_with(kNamespace)) continue;
      const auto handle = dispatcher.findSchema(name);
      if (handle) (*all)[name.name.substr(kNamespace.size())].push_back(*handle);
    }
    return all;
  }();
  return ops;
}

bool holds_tensors(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
  return type->kind() == c10::TypeKind::TensorType;
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), holds_tensors);
}

bool returns_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(
      schema.returns(), [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

// A cast argument is a copy, so one that is written to or seen again in the result stays as it is.
bool castable(const c10::FunctionSchema& schema) {
  return takes_tensors(schema) && !schema.is_mutable() && !returns_view(schema);
}

// Batch norm writes to its running statistics although its schema does not say so. And its CPU
// kernel takes low precision with parameters in float, or everything in one type.
std::vector<bool> arguments_to_cast(const c10::FunctionSchema& schema, CastRules::Precision to) {
  const bool statistics = schema.argumentIndexWithName("running_mean").has_value();
  std::vector<bool> casts;
  for (const auto& argument : schema.arguments()) {
    const auto& name = argument.name();
    bool cast = holds_tensors(argument);
    if (statistics) cast &= name != "running_mean" && name != "running_var";
    if (statistics && to == CastRules::Precision::kLow) cast &= name != "weight" && name != "bias";
    casts.push_back(cast);
  }
  return casts;
}

class CastKernel final : public c10::OperatorKernel {
 public:
  CastKernel(size_t number, const c10::OperatorHandle& op, c10::DeviceType device)
      : number_(number),
        device_(device),
        key_(at::autocast::get_autocast_dispatch_key_from_device_type(device)),
        to_low_(arguments_to_cast(op.schema(), CastRules::Precision::kLow)),
        to_fp32_(arguments_to_cast(op.schema(), CastRules::Precision::kFp32)) {
    if (op.hasKernelForDispatchKey(key_)) {
      default_kernel_ = op.getComputedKernelForDispatchKey(key_).kernelFunction();
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
    const auto precision = precision_of(number_);
    const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key_);
    if (precision == CastRules::Precision::kDefault) {
      if (default_kernel_.isValid()) {
        default_kernel_.callBoxed(op, keys, stack);
      } else {
        op.redispatchBoxed(below, stack);
      }
      return;
    }
    const bool low = precision == CastRules::Precision::kLow;
    const auto dtype = low ? at::autocast::get_autocast_dtype(device_) : torch::kFloat;
    const auto& casts = low ? to_low_ : to_fp32_;
    const NoAutocastScope no_autocast;
    auto* arguments = stack->data() + (stack->size() - casts.size());
    for (size_t i = 0; i < casts.size(); ++i) {
      if (casts[i]) cast(arguments[i], dtype);
    }
    // Below this key, not from the top: whoever intercepts ops has seen this one.
    op.redispatchBoxed(below - c10::autocast_dispatch_keyset, stack);
  }

 private:
  void cast(c10::IValue& value, torch::ScalarType dtype) const {
    const auto to = [&](const torch::Tensor& tensor) {
      return at::autocast::cached_cast(dtype, tensor, device_);
    };
    if (value.isTensor()) {
      value = to(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<torch::Tensor> tensors;
      for (const auto& tensor : value.toTensorVector()) tensors.push_back(to(tensor));
      value = std::move(tensors);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<torch::Tensor>> tensors;
      for (const std::optional<torch::Tensor> tensor : value.toOptionalTensorList()) {
        tensors.push_back(tensor ? std::optional(to(*tensor)) : std::nullopt);
      }
      value = std::move(tensors);
    }
  }

  size_t number_;
  c10::DeviceType device_;
  c10::DispatchKey key_;
  std::vector<bool> to_low_, to_fp32_;
  c10::KernelFunction default_kernel_;  // what autocast itself does with this op; invalid: nothing
};

class SilentWarnings final : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

/// Ops whose kernels are in place, numbered. They are never taken back: other threads may be inside
/// one.
struct Registered {
  std::mutex mutex;
  std::map<std::string, size_t> numbers;
  std::vector<c10::RegistrationHandleRAII> handles;

  static Registered& get() {
    static auto& all = *new Registered();
    return all;
  }
};

size_t registered(const std::string& op) {
  auto& [mutex, numbers, registrations] = Registered::get();
  const std::scoped_lock lock(mutex);
  const auto [place, is_new] = numbers.emplace(op, numbers.size());
  if (!is_new) return place->second;
  // LibTorch warns of kernels that take the place of others, which is what these are for.
  SilentWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  for (const auto& overload : libtorch_ops().at(op)) {
    if (!castable(overload.schema())) continue;
    for (const auto device : {at::kCPU, at::kCUDA}) {
      auto kernel = std::make_unique<CastKernel>(place->second, overload, device);
      registrations.push_back(c10::Dispatcher::singleton().registerImpl(
          overload.operator_name(),
          at::autocast::get_autocast_dispatch_key_from_device_type(device),
          c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)), std::nullopt, nullptr,
          "fleet::compat::CastRules"));
    }
  }
  return place->second;
}

}  // namespace

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const auto& [name, overloads] : libtorch_ops()) names.push_back(name);
  return names;
}

std::string why_not_castable(const std::string& op) {
  std::string why;
  for (const auto& overload : libtorch_ops().at(op)) {
    const auto& schema = overload.schema();
    if (castable(schema)) return "";
    if (!takes_tensors(schema)) {
      why = "it takes no tensor";
    } else if (schema.is_mutable()) {
      why = "it writes to an argument, whose type is given";
    } else {
      why = "it returns a view of its argument, which has that one's type";
    }
  }
  return why;
}

CastRules::CastRules(const std::vector<std::string>& low, const std::vector<std::string>& fp32) {
  Table table;
  const auto set = [&](const std::string& op, Precision precision) {
    const auto number = registered(op);
    if (number >= table.size()) table.resize(number + 1, Precision::kDefault);
    table[number] = precision;
  };
  for (const auto& op : low) set(op, Precision::kLow);
  for (const auto& op : fp32) set(op, Precision::kFp32);
  if (!table.empty()) table_ = std::make_shared<const Table>(std::move(table));
}

CastRulesScope::CastRulesScope(const CastRules& rules)
    : previous_(std::exchange(t_rules, rules.table_)) {}

CastRulesScope::~CastRulesScope() { t_rules = std::move(previous_); }

bool is_named_by_cast_rules(const std::string& op) {
  if (!t_rules) return false;
  auto& all = Registered::get();
  const std::scoped_lock lock(all.mutex);
  const auto place = all.numbers.find(op);
  return place != all.numbers.end() &&
         precision_of(place->second) != CastRules::Precision::kDefault;
}

const std::shared_ptr<const CastRules::Table>& current_cast_rules() { return t_rules; }
void set_cast_rules(std::shared_ptr<const CastRules::Table> rules) { t_rules = std::move(rules); }

}  // namespace fleet::compat
