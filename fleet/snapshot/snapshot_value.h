// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <torch/types.h>

#include "fleet/core/model_handle.h"
#include "fleet/io/safetensors.h"

namespace fleet {

/// What a snapshot keeps of a program's own: numbers, texts, lists of numbers, tensors.
template <typename T>
concept Serializable = std::same_as<T, bool> || std::same_as<T, int> || std::same_as<T, int64_t> ||
    std::same_as<T, uint64_t> || std::same_as<T, float> || std::same_as<T, double> ||
    std::same_as<T, std::string> || std::same_as<T, std::vector<int64_t>> ||
    std::same_as<T, std::vector<double>> || std::same_as<T, torch::Tensor>;

/// A variable of the program that is saved and resumed by name. It must outlive the Snapshots.
///
/// Every rank keeps its own. With another number of ranks all get rank 0's. A tensor may change its
/// shape, and be undefined; one that has the shape already is written in place.
///
///   double best_loss = std::numeric_limits<double>::infinity();
///   fleet::Snapshots snapshots(optimizer, config.snapshots, train, {{"best_loss", &best_loss}});
class SnapshotValue {
 public:
  template <Serializable T>
  SnapshotValue(std::string name, T* value) : name_(std::move(name)), pointer_(value) {}

  using Pointer = std::variant<bool*, int*, int64_t*, uint64_t*, float*, double*, std::string*,
                               std::vector<int64_t>*, std::vector<double>*, torch::Tensor*>;

  const std::string& name() const { return name_; }
  const Pointer& pointer() const { return pointer_; }
  bool is_null() const;
  bool is_tensor() const { return std::holds_alternative<torch::Tensor*>(pointer_); }

 private:
  std::string name_;
  Pointer pointer_;
};

/// All but the tensors as JSON, to the last bit; numbers that JSON lacks are "inf", "-inf", "nan".
std::string write_values(const std::vector<SnapshotValue>& values);
/// Copies of the tensors that are defined, as "value/NAME".
std::vector<NamedTensor> copied_tensors(const std::vector<SnapshotValue>& values);
/// What `write_values` wrote, and tensors from `tensors` (null: none are read). The call that it
/// returns sets the variables; an Error that names `source` comes before anything is set.
std::function<void()> read_values(const std::vector<SnapshotValue>& values, const std::string& text,
                                  const std::string& source, const SafetensorsFile* tensors);

/// What tensors among a rank's own values are called in its file.
inline constexpr std::string_view kValueNames = "value/";

}  // namespace fleet
