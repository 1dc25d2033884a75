// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

namespace fleet {

/// What recording, planning and replaying have to know of an op beyond its schema.
///
/// LibTorch's ops are in the table from the start. Of an op outside of it, aten's tags and
/// generator arguments tell whether it uses random numbers; an op of another library counts as
/// using the default generator, and as free of arithmetic.
///
///   static const bool registered = fleet::register_op(
///       "mine::rotate", {.randomness = fleet::OpProperties::Randomness::kNone});
struct OpProperties {
  enum class Randomness {
    kUnknown,    // its schema tells
    kNone,       // the same arguments give the same results
    kArguments,  // so they do, since seed and position of its random numbers are arguments
    kGenerator,  // draws from a generator, whose state a replay has to restore
  };
  /// Multiplications and additions, from the op's tensor arguments and the number of elements of
  /// its first result.
  using Flops = double (*)(const std::vector<torch::Tensor>& arguments, double result);

  Randomness randomness = Randomness::kUnknown;
  Flops flops = nullptr;  // null: none that matter beside the bytes that it moves
  /// Which of the tensors that autograd saves is a dropout's mask: zero or one value, so that it
  /// can be kept as bits. -1: none.
  int mask_save = -1;
  /// A composite whose ops are recorded instead of it: some of what it saves is cheap to recompute,
  /// which shows only in its parts.
  bool is_decomposed = false;
};

/// Adds an op ("mine::rotate") to the table; returns true. Call it before the op is recorded for
/// the first time. An op that is there already gets the new properties.
bool register_op(const std::string& name, const OpProperties& properties);

/// Those of an op that is not in the table are all defaults.
OpProperties op_properties(const std::string& name);

}  // namespace fleet
