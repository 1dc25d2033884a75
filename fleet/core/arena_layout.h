// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/core/model_handle.h"

namespace fleet {

/// One parameter's place in the arena; offsets count elements of its group.
struct ArenaSpan {
  std::string name;
  std::vector<std::string> aliases;  // further names of the same tensor, when modules share it
  torch::Tensor parameter;
  torch::Tensor value;  // views of the group's buffers with the parameter's sizes and strides
  torch::Tensor gradient;
  torch::Tensor working;  // what the model computes with, when `value` is a master; else undefined
  size_t group = 0;
  int64_t offset = 0;
  int64_t numel = 0;
};

/// Parameters of one dtype on one device: flat buffers of equal length, spans in order of
/// registration.
struct ArenaGroup {
  torch::Tensor values;
  torch::Tensor working;  // of the length of `values`; used by spans that have such a view
  torch::Tensor gradients;
  size_t first_span = 0;
  size_t last_span = 0;  // one past
};

/// How an arena is laid out.
struct ArenaOptions {
  /// Give the model parameters of this type, and keep their masters and gradients in float: those
  /// of two or more dimensions, and those that have the type already. Biases and norms stay float.
  std::optional<torch::ScalarType> working_dtype = {};
  /// Further floats in the metadata: a place for each rank, for what it tells the others of itself.
  int64_t metadata_slots = 0;
};

/// Which parameter lies where. Its buffers of values are zeros, and views and gradients undefined,
/// until a ParameterArena takes the parameters over.
struct ArenaLayout {
  std::vector<ArenaGroup> groups;
  std::vector<ArenaSpan> spans;
  std::vector<NamedTensor> frozen;
  int64_t numel = 0;  // of all spans, without padding
};
ArenaLayout lay_out(const std::vector<NamedTensor>& parameters, const ArenaOptions& options);

/// Whether the arena keeps this parameter in float, and gives the model a copy of
/// `working_dtype`.
bool has_master(const torch::Tensor& parameter, const ArenaOptions& options);

}  // namespace fleet
