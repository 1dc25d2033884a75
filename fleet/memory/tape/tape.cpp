// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/tape/tape.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "fleet/core/seconds_since.h"
#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/plan/profile/profile_writer.h"
#include "fleet/memory/replay/replay_rules.h"
#include "fleet/memory/tape/copy_on_write.h"
#include "fleet/memory/tape/unrecorded_scope.h"

namespace fleet::memory {
namespace {

using Clock = std::chrono::steady_clock;

// Tensors nested deeper than in a list are not recorded.
bool hides_tensors(const c10::IValue& value) {
  if (value.isTuple() || value.isGenericDict() || value.isObject()) return true;
  if (!value.isList()) return false;
  return !value.toListRef().empty() && value.toListRef()[0].isTensor();
}

}  // namespace

Tape::Tape(TapePolicy& policy, std::shared_ptr<Profiler> profiler, const Offload* offload)
    : policy_(policy),
      values_(/*lists_values=*/profiler || offload),
      profile_(profiler ? std::make_unique<ProfileWriter>(std::move(profiler), values_) : nullptr),
      retention_(policy, values_, report_, profile_.get(), offload) {
  if (profile_ && offload) profile_->profiler()->exclude_file(offload->file);
}

Tape::~Tape() {
  try {
    end();
  } catch (...) {  // a backward that reads what was evicted gets the error
    retention_.abandon();
  }
}

void Tape::end() { retention_.end(); }

Tape* Tape::current() { return dynamic_cast<Tape*>(compat::op_observer()); }

void Tape::add_input(OpRecord& record, const torch::Tensor& tensor, int argument, int element) {
  const auto& traits = record.traits->arguments[static_cast<size_t>(argument)];
  OpInput input{.argument = argument,
                .element = element,
                .value = values_.number_of(tensor, -1, nullptr),
                .requires_grad = tensor.requires_grad(),
                .written = traits.written,
                .statistics = traits.statistics};
  input.version = values_.version_of(input.value);
  // What a subclass computes with __torch_dispatch__ is not for replays.
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch()) record.can_replay = false;
  // A replay that writes to a replay input would change it for the next one.
  if (input.written && !retention_.is_inside(input.value)) record.can_replay = false;
  if (values_.is_borrowed(input.value)) record.can_replay = false;  // it may be gone by then
  if (const int made = values_.producer_of(input.value); input.written && made >= 0) {
    policy_.on_in_place_write(made, record.index);
  }
  arguments_.push_back(tensor);
  record.inputs.push_back(std::move(input));
}

void Tape::read_arguments(OpRecord& record, const torch::jit::Stack& stack) {
  const auto& traits = *record.traits;
  const size_t n = traits.arguments.size();
  const auto* const first = stack.data() + (stack.size() - n);
  record.arguments.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const auto& value = first[i];
    const auto argument = static_cast<int>(i);
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        add_input(record, value.toTensor(), argument, -1);
      } else {
        record.arguments[i] = value;
      }
    } else if (value.isTensorList()) {
      const auto tensors = value.toTensorVector();
      record.lists.push_back({.argument = argument, .size = static_cast<int64_t>(tensors.size())});
      for (size_t j = 0; j < tensors.size(); ++j) {
        if (tensors[j].defined()) add_input(record, tensors[j], argument, static_cast<int>(j));
      }
    } else if (value.isOptionalTensorList()) {
      const auto tensors = value.toOptionalTensorVector();
      record.lists.push_back(
          {.argument = argument, .size = static_cast<int64_t>(tensors.size()), .optional = true});
      for (size_t j = 0; j < tensors.size(); ++j) {
        if (tensors[j] && tensors[j]->defined()) {
          add_input(record, *tensors[j], argument, static_cast<int>(j));
        }
      }
    } else {
      if (hides_tensors(value)) record.can_replay = false;
      record.arguments[i] = value;
    }
  }
  if (traits.changes_storage || !may_replay(traits.name)) record.can_replay = false;
}

// Replay inputs that this op writes to are copied first.
void Tape::copy_before_write(const OpRecord& record) {
  if (!record.traits->writes && !record.traits->has_statistics) return;
  const UnrecordedScope unrecorded;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const auto& input = record.inputs[i];
    if (!input.written && !input.statistics) continue;
    copy_on_write(arguments_[i]);
    const int id = values_.storage_id_of(input.value);
    if (!undo_ || id < 0) continue;
    auto& storage = values_.storage(id);
    if (storage.predates_forward && !std::exchange(storage.has_undo_copy, true))
      undo_->add(arguments_[i]);
  }
}

std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> Tape::storages_from_outside() const {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> result;
  for (int id = 0; id < values_.storages(); ++id) {
    const auto& storage = values_.storage(id);
    if (storage.predates_forward) result.push_back(storage.storage);
  }
  return result;
}

void Tape::accept_write(const OpRecord& record) const {
  if (!record.traits->writes && !record.traits->has_statistics) return;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const auto& input = record.inputs[i];
    // A replay updates a copy of statistics: what they are does not matter to it.
    if (input.written || input.statistics) after_write(arguments_[i]);
  }
}

// By a factory, or by an op that is not replayed, in this forward.
bool Tape::is_made_outside(int value) const {
  const int storage = values_.storage_id_of(value);
  return storage >= 0 && !values_.storage(storage).predates_forward &&
         !values_.defining_region_of(value);
}

// Values from other regions are what a replay starts from.
void Tape::keep_inputs(OpRecord& record) {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    auto& input = record.inputs[i];
    if (retention_.is_inside(input.value)) continue;
    if (is_made_outside(input.value) && !input.written && !record.traits->is_view) {
      input.constant = ConstantInput::of(arguments_[i]);
      if (input.constant) continue;
    }
    input.kept =
        retention_.kept(input.value, arguments_[i], record.index, Retention::Use::kReplayInput);
    input.kept->become_replay_input();
    if (profile_) profile_->starts_from(record, input.value, input.kept);
  }
}

void Tape::note_writes(const OpRecord& record) {
  for (const auto& input : record.inputs) {
    const int storage = values_.storage_id_of(input.value);
    if (!(input.written || input.statistics) || storage < 0) continue;
    values_.written(storage, record.index);
    // From here on it holds what no replay computes.
    if (input.written && !record.can_replay) values_.storage(storage).defining_region = nullptr;
  }
}

void Tape::read_results(OpRecord& record, const torch::jit::Stack& stack) {
  const auto& traits = *record.traits;
  // Results that the user fills through a pointer are not recomputed by calling the op.
  const bool is_factory = record.inputs.empty() || traits.is_factory;
  auto* const defining_region =
      is_factory || !record.can_replay ? nullptr : retention_.region().get();
  const auto add = [&](const torch::Tensor& tensor) {
    auto& output = record.outputs.emplace_back();
    if (!tensor.defined()) return;
    output = {.value = values_.number_of(tensor, record.index, defining_region),
              .numel = tensor.numel(),
              .dtype = tensor.scalar_type()};
  };
  for (size_t i = stack.size() - traits.results; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      add(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      for (const auto& tensor : stack[i].toTensorVector()) add(tensor);
    }
  }
}

// No replay calls an op that saved nothing and whose results all came from outside, such as a slice
// of a buffer that a factory made. As a replay input, that buffer would be copied before each
// write.
void Tape::release_inputs(OpRecord& record) const {
  if (record.saves > 0 || record.traits->writes) return;
  const bool is_wanted = std::ranges::any_of(record.outputs, [&](const OpOutput& output) {
    return output.value >= 0 && values_.defining_region_of(output.value);
  });
  if (is_wanted) return;
  record.can_replay = false;
  record.rng_state.reset();
  for (auto& input : record.inputs) {
    input.kept.reset();
    input.constant.reset();
  }
}

bool Tape::decomposes(const c10::OperatorHandle& op) {
  return !running_ && OpTraits::of(op).is_decomposed;
}

void Tape::call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (running_) return op.callBoxed(stack);  // an op that calls back into the user's code
  const auto& traits = OpTraits::of(op);
  if (retention_.can_cut() && policy_.cut_before_op(*this, traits)) retention_.cut();
  retention_.offload_due();
  auto record = std::make_shared<OpRecord>(next_op(), op, traits);
  arguments_.clear();
  saved_now_.clear();
  read_arguments(*record, *stack);
  copy_before_write(*record);
  if (retention_.may_be_replayed(*record)) keep_inputs(*record);
  if (traits.uses_rng) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    for (const auto& argument : record->arguments) {
      if (argument.isGenerator()) generator = argument.toGenerator();
    }
    record->rng_state.emplace(std::move(generator));
  }
  struct Running {
    explicit Running(Tape& tape) : tape(tape) {}
    ~Running() {
      tape.running_.reset();
      tape.saved_now_.clear();
      tape.arguments_.clear();
    }
    Tape& tape;
  } const running(*this);
  running_ = record;
  if (profile_) profile_->op_begins(*record);
  const auto began = retention_.needs_seconds() ? Clock::now() : Clock::time_point();
  op.callBoxed(stack);
  const double seconds = retention_.needs_seconds() ? seconds_since(began) : 0;
  if (profile_) profile_->profiler()->op_returned();
  if (record->rng_state && !record->rng_state->set_end()) record->rng_state.reset();
  accept_write(*record);
  note_writes(*record);
  read_results(*record, *stack);
  release_inputs(*record);
  retention_.add(record, seconds);
  if (profile_) {
    profile_->op_ended(*record, arguments_);
    profile_->profiler()->op().is_inside_recompute = retention_.has_op_in_open_recompute();
  }
  for (const auto& slot : saved_now_) retention_.resolve(*slot, record.get());
}

std::unique_ptr<compat::SavedTensor> Tape::save(const torch::Tensor& tensor) {
  auto slot = std::make_shared<SavedSlot>(tensor);
  ++report_.saves;
  if (profile_) slot->profiler = profile_->profiler();
  slot->replays = replays_;
  if (running_) {
    slot->save = running_->saves++;
    slot->op = &running_->traits->name;
    slot->op_index = running_->index;
    saved_now_.push_back(slot);
  } else {
    // By a custom function, behind its last op: its backward comes where that of the op would.
    slot->op_index = next_op() - 1;
    retention_.resolve(*slot, nullptr);
  }
  return std::make_unique<SlotHandle>(std::move(slot));
}

void Tape::checkpoint(std::string_view name, const torch::Tensor& x) {
  policy_.on_checkpoint(name, x);
  if (profile_) profile_->profiler()->checkpoint_before(next_op());
  const bool cuts = policy_.cut_at(name);
  if (cuts && retention_.can_cut() && !running_) retention_.cut();
}

void Tape::open_region() {
  if (retention_.can_cut() && !running_ && policy_.cut_before_recompute(*this)) retention_.cut();
  retention_.open_region();
}

void Tape::close_region(TapePolicy::Treatment treatment) { retention_.close_region(treatment); }

}  // namespace fleet::memory
