// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_value.h"

#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

using Json = nlohmann::ordered_json;

// ---- writing ------------------------------------------------------------------------------------

template <typename T>
Json to_json(const T& value) {
  return value;
}

Json to_json(double value) {
  if (std::isfinite(value)) return value;
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}
Json to_json(float value) { return to_json(static_cast<double>(value)); }

Json to_json(const std::vector<double>& values) {
  auto list = Json::array();
  for (const double value : values) list.push_back(to_json(value));
  return list;
}

// ---- reading: nothing when the JSON is of another kind ------------------------------------------

std::optional<bool> from_json(const Json& json, const bool* /*as*/) {
  return json.is_boolean() ? std::optional(json.get<bool>()) : std::nullopt;
}

template <std::integral T>
std::optional<T> from_json(const Json& json, const T* /*as*/) {
  if (!json.is_number_integer()) return {};
  if (json.is_number_unsigned()) {
    const auto number = json.get<uint64_t>();
    return std::in_range<T>(number) ? std::optional(static_cast<T>(number)) : std::nullopt;
  }
  const auto number = json.get<int64_t>();
  return std::in_range<T>(number) ? std::optional(static_cast<T>(number)) : std::nullopt;
}

template <std::floating_point T>
std::optional<T> from_json(const Json& json, const T* /*as*/) {
  if (json.is_number()) return static_cast<T>(json.get<double>());
  if (json == "inf") return std::numeric_limits<T>::infinity();
  if (json == "-inf") return -std::numeric_limits<T>::infinity();
  if (json == "nan") return std::numeric_limits<T>::quiet_NaN();
  return {};
}

std::optional<std::string> from_json(const Json& json, const std::string* /*as*/) {
  return json.is_string() ? std::optional(json.get<std::string>()) : std::nullopt;
}

template <typename T>
std::optional<std::vector<T>> from_json(const Json& json, const std::vector<T>* /*as*/) {
  if (!json.is_array()) return {};
  std::vector<T> values;
  for (const auto& item : json) {
    const auto value = from_json(item, static_cast<const T*>(nullptr));
    if (!value) return {};
    values.push_back(*value);
  }
  return values;
}

// What variables expect, for an error.
template <typename T>
std::string_view kind_of() {
  if constexpr (std::same_as<T, bool>) return "true or false";
  if constexpr (std::same_as<T, int>) return "a whole number that fits an int";
  if constexpr (std::same_as<T, int64_t>) return "a whole number";
  if constexpr (std::same_as<T, uint64_t>) return "a whole number of at least 0";
  if constexpr (std::floating_point<T>) return "a number";
  if constexpr (std::same_as<T, std::string>) return "a text";
  return "a list of numbers";
}

// For an error. One that is nested without end would take a stack as deep to print.
std::string shown(const Json& json) {
  return json.is_array() ? "a list" : json.is_object() ? "an object" : json.dump();
}

std::string tensor_name(const std::string& name) { return format("{}{}", kValueNames, name); }

// In place where that is possible: other tensors may share the storage.
void set_tensor(torch::Tensor& tensor, const torch::Tensor& saved) {
  const torch::NoGradGuard no_grad;
  if (!tensor.defined() || !saved.defined()) {
    tensor = saved;
  } else if (tensor.sizes() == saved.sizes() && tensor.scalar_type() == saved.scalar_type()) {
    tensor.copy_(saved);
  } else {
    tensor = saved.to(tensor.device());
  }
}

}  // namespace

bool SnapshotValue::is_null() const {
  return std::visit([](const auto* pointer) { return pointer == nullptr; }, pointer_);
}

std::string write_values(const std::vector<SnapshotValue>& values) {
  auto object = Json::object();
  for (const auto& value : values) {
    std::visit(
        [&](const auto* pointer) {
          using T = std::remove_cvref_t<decltype(*pointer)>;
          if constexpr (!std::same_as<T, torch::Tensor>) object[value.name()] = to_json(*pointer);
        },
        value.pointer());
  }
  try {
    return object.dump(2) + "\n";
  } catch (const Json::type_error& error) {  // the only one there is
    throw Error("snapshot", format("a text among the own values is not UTF-8: {}", error.what()),
                "keep bytes in a tensor");
  }
}

std::vector<NamedTensor> copied_tensors(const std::vector<SnapshotValue>& values) {
  std::vector<NamedTensor> tensors;
  for (const auto& value : values) {
    const auto* const pointer = std::get_if<torch::Tensor*>(&value.pointer());
    if (pointer == nullptr || !(*pointer)->defined()) continue;
    tensors.push_back({tensor_name(value.name()), (*pointer)->detach().cpu().clone()});
  }
  return tensors;
}

std::function<void()> read_values(const std::vector<SnapshotValue>& values, const std::string& text,
                                  const std::string& source, const SafetensorsFile* tensors) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Error("snapshot", format("{} does not hold one object", source));
  std::vector<std::function<void()>> sets;
  std::vector<std::string> problems;
  for (const auto& value : values) {
    std::visit(
        [&](auto* pointer) {
          using T = std::remove_cvref_t<decltype(*pointer)>;
          if constexpr (std::same_as<T, torch::Tensor>) {
            if (tensors == nullptr) return;
            const auto* entry = tensors->find(tensor_name(value.name()));
            const auto saved = entry ? tensors->read(*entry) : torch::Tensor();
            sets.push_back([pointer, saved] { set_tensor(*pointer, saved); });
          } else {
            const auto found = json.find(value.name());
            auto saved = found == json.end() ? std::optional<T>()
                                             : from_json(*found, static_cast<const T*>(nullptr));
            if (saved) {
              sets.push_back([pointer, saved = std::move(*saved)] { *pointer = saved; });
            } else {
              problems.push_back(format("{} is {} there, and {} is expected here", value.name(),
                                        found == json.end() ? "a tensor" : shown(*found),
                                        kind_of<T>()));
            }
          }
        },
        value.pointer());
  }
  if (!problems.empty()) {
    throw UsageError::all(
        "snapshot", format("{}: own values are of another type", source), problems,
        "give variables of the type that they had, or choose another --snapshot_dir");
  }
  return [sets = std::move(sets)] {
    for (const auto& set : sets) set();
  };
}

}  // namespace fleet
