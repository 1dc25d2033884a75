#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/core/torch_compat.h"
#include "fleet/memory/mask_bits.h"

namespace fleet::memory {

class KeptValue;

/// What an op's schema says, worked out once per op.
struct OpTraits {
  struct Argument {
    bool written = false;
    bool statistics = false;  // running_mean, running_var: written although the schema is silent
  };
  std::string name;  // "aten::linear"
  std::vector<Argument> arguments;
  size_t results = 0;
  bool writes = false;
  bool has_statistics = false;
  bool is_view = false;          // a result shares memory with an argument
  bool may_draw = false;         // random numbers; for ops from elsewhere that is never known
  bool is_factory = false;       // its results are for the caller to fill, past the dispatcher
  bool changes_storage = false;  // set_, resize_: the tensor stands for other memory afterwards

  static const OpTraits& of(const c10::OperatorHandle& op);
};

/// The position of a generator; equal positions give equal draws.
class GeneratorState {
 public:
  explicit GeneratorState(at::Generator generator);
  ~GeneratorState();
  GeneratorState(GeneratorState&&) noexcept;
  GeneratorState& operator=(GeneratorState&&) noexcept;

  const at::Generator& generator() const { return generator_; }
  void restore() const;
  bool has_moved() const;

  /// An op has drawn from here on: remembers where that ended. False if the generator did not move.
  bool set_end();
  /// The generator is where it was then.
  bool is_at_end() const;

  /// Of the generator that draws when none is named.
  static GeneratorState of_default();

 private:
  struct CpuState;
  struct CpuPosition;
  at::Generator generator_;
  std::unique_ptr<CpuState> cpu_;
  std::unique_ptr<CpuPosition> cpu_end_;
  torch::Tensor other_, other_end_;  // of any other device
};

/// A tensor among the arguments of a recorded op.
struct OpInput {
  int argument = 0;
  int element = -1;  // within a list; -1: the argument itself
  int value = -1;    // in the Ledger
  uint32_t version = 0;
  bool requires_grad = false;  // when it was passed: this may change during a tensor's life
  bool written = false;
  bool statistics = false;
  std::shared_ptr<KeptValue> kept;  // where a replay finds it; null: the replay makes it itself
};

struct OpOutput {
  int value = -1;  // in the Ledger; -1: undefined
  int64_t numel = 0;
  torch::ScalarType dtype = torch::kFloat;
};

/// An argument that is a list of tensors, each of them an OpInput.
struct OpTensorList {
  int argument = 0;
  int64_t size = 0;
  bool optional = false;  // of tensors that may be missing
};

/// One op as the user called it, enough to call it again.
struct OpRecord {
  OpRecord(int number, const c10::OperatorHandle& handle, const OpTraits& what);
  ~OpRecord();
  OpRecord(const OpRecord&) = delete;
  OpRecord& operator=(const OpRecord&) = delete;

  /// Of a dropout whose mask is known: makes the mask again, and needs no inputs for that.
  std::shared_ptr<OpRecord> mask_alone() const;

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
  std::optional<GeneratorState> draws;  // from here
  std::optional<MaskBits> mask;         // of a dropout: instead of drawing again
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
