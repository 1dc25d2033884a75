// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/core/generator_state.h"
#include "fleet/core/op_properties.h"
#include "fleet/core/torch/call_state.h"
#include "fleet/memory/replay/constant_input.h"
#include "fleet/memory/replay/mask_bits.h"

namespace fleet::memory {

class KeptValue;

/// What an op's schema and its properties (op_properties.h) say, read once per op.
struct OpTraits {
  struct Argument {
    bool written = false;
    bool statistics = false;  // running_mean, running_var: written, but not declared in the schema
  };
  std::string name;  // "aten::linear"
  std::vector<Argument> arguments;
  size_t results = 0;
  bool writes = false;
  bool has_statistics = false;
  bool is_view = false;          // a result shares its storage with an argument
  bool uses_rng = false;         // draws from a generator
  bool is_factory = false;       // the caller fills its results, past the dispatcher
  bool changes_storage = false;  // set_, resize_: the tensor has another storage afterwards
  bool is_decomposed = false;    // a composite whose parts are recorded instead of it
  int mask_save = -1;            // which saved tensor is a dropout's mask; -1: none
  OpProperties::Flops flops = nullptr;

  static const OpTraits& of(const c10::OperatorHandle& op);
};

/// A tensor among the arguments of a recorded op.
struct OpInput {
  int argument = 0;
  int element = -1;  // within a list; -1: the argument itself
  int value = -1;    // in the ProvenanceTable
  uint32_t version = 0;
  bool requires_grad = false;  // when it was passed: this may change later
  bool written = false;
  bool statistics = false;
  std::shared_ptr<KeptValue> kept;  // its replay input; null: the replay recomputes it
  std::shared_ptr<const ConstantInput> constant;  // instead of `kept`
  bool is_kept() const { return kept || constant; }
};

struct OpOutput {
  int value = -1;  // in the ProvenanceTable; -1: undefined
  int64_t numel = 0;
  torch::ScalarType dtype = torch::kFloat;
};

/// An argument that is a list of tensors, each of them an OpInput.
struct OpTensorList {
  int argument = 0;
  int64_t size = 0;
  bool optional = false;  // of tensors that may be missing
};

/// One op as the user called it: all that a replay needs.
struct OpRecord {
  OpRecord(int number, const c10::OperatorHandle& handle, const OpTraits& what);
  ~OpRecord();
  OpRecord(const OpRecord&) = delete;
  OpRecord& operator=(const OpRecord&) = delete;

  /// Of a dropout whose mask is kept as bits: recomputes the mask alone, without inputs.
  std::shared_ptr<OpRecord> mask_only() const;

  int index;  // in the order of calls
  std::unique_ptr<c10::OperatorHandle> op;
  const OpTraits* traits;
  compat::CallState state;
  std::vector<c10::IValue> arguments;  // None where tensors go
  std::vector<OpInput> inputs;
  std::vector<OpTensorList> lists;
  std::vector<OpOutput> outputs;
  int saves = 0;  // tensors that autograd saved while it ran
  bool can_replay = true;
  std::optional<GeneratorState> rng_state;  // before the op
  std::optional<MaskBits> mask;             // of a dropout: instead of random numbers
};

/// Records of neighbouring ops.
struct OpRecords {
  int first_op = 0;
  std::vector<std::shared_ptr<OpRecord>> records;

  /// Null for an op before the first.
  std::shared_ptr<OpRecord> find(int op) const {
    return op < first_op ? nullptr : records[static_cast<size_t>(op - first_op)];
  }
};

}  // namespace fleet::memory
