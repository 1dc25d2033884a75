#include "fleet/memory/tape.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/memory/replay_rules.h"
#include "fleet/memory/step_profile.h"
#include "fleet/memory/tensor_storage.h"

namespace fleet::memory {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Tensors deeper in a value than in lists are not followed.
bool hides_tensors(const c10::IValue& value) {
  if (value.isTuple() || value.isGenericDict() || value.isObject()) return true;
  if (!value.isList()) return false;
  return !value.toListRef().empty() && value.toListRef()[0].isTensor();
}

// Keeps tape work out of the tape itself.
struct OffTheRecord {
  compat::NoInterceptScope engine;
  compat::ObserverScope nobody{nullptr, nullptr};
  torch::NoGradGuard no_grad;
};

}  // namespace

// The weak pointer holds the address, not the data, so identity is exact.
struct Tape::Seen {
  WeakTensor tensor{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  torch::ScalarType dtype = torch::kFloat;
  std::vector<std::weak_ptr<KeptValue>> kept;
};

struct Tape::Memory {
  WeakStorage storage{c10::intrusive_ptr<c10::StorageImpl>()};
  Region* home = nullptr;        // where its first value was made; null: outside
  int block = -1;                // of the profile
  std::vector<int> values = {};  // with a profile, or offload
};

// One tensor that autograd saved.
struct Tape::Slot {
  torch::Tensor tensor;  // until settled
  const c10::TensorImpl* address = nullptr;
  c10::VariableVersion version_counter;
  uint32_t version = 0;
  int save = -1;  // of the op that ran
  const std::string* op = nullptr;
  struct View {
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;
  };
  std::unique_ptr<View> view;  // what was saved of `kept`; null: all of it
  std::shared_ptr<KeptValue> kept;
  std::shared_ptr<Region> region;  // keeps what rebuilds `kept` alive
  int op_index = -1;
  std::shared_ptr<Profiler> profiler;

  ~Slot() {
    if (kept) kept->remove_reader();
  }
};

class Tape::Saved final : public compat::SavedTensor {
 public:
  explicit Saved(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}

  torch::Tensor unpack() override {
    const auto& slot = *slot_;
    // Autograd leaves this check to whoever keeps the tensor.
    const auto now = slot.version_counter.current_version();
    if (now != slot.version) {
      throw Error(
          "backward",
          format("one of the variables needed for gradient computation has been modified by "
                 "an inplace operation: what {} saved is at version {}, and version {} is "
                 "needed",
                 slot.op ? *slot.op : "a custom function", now, slot.version),
          "use the op that returns a new tensor instead, or clone() before it");
    }
    if (slot.profiler) return unpack_measured();
    return read();
  }

 private:
  torch::Tensor read() const {
    if (!slot_->kept) return slot_->tensor;
    auto tensor = slot_->kept->read();
    if (!slot_->view) return tensor;
    const torch::NoGradGuard no_grad;
    return tensor.as_strided(slot_->view->sizes, slot_->view->strides, slot_->view->offset);
  }

  torch::Tensor unpack_measured() const {
    struct Listening {
      explicit Listening(ReplayListener* listener) : before(ReplayListener::exchange(listener)) {}
      ~Listening() { ReplayListener::exchange(before); }
      ReplayListener* before;
    } const listening(slot_->profiler.get());
    slot_->profiler->unpacking();
    auto tensor = read();
    const bool is_handed_out = slot_->kept && !slot_->kept->is_here();
    slot_->profiler->unpacked(slot_->op_index, is_handed_out ? slot_->kept->bytes() : 0);
    return tensor;
  }

  std::shared_ptr<Slot> slot_;
};

Tape::Tape(TapePolicy& policy, std::shared_ptr<Profiler> profiler, const Offload* offload)
    : policy_(policy),
      offload_(offload),
      profiler_(std::move(profiler)),
      ledger_(std::make_shared<Ledger>()),
      root_(std::make_shared<Region>(nullptr, ledger_, 0)) {
  if (profiler_ && offload_) profiler_->leave_out(offload_->file);
  regions_.push_back(root_);
  open_.push_back({.region = root_, .treatment = TapePolicy::Treatment::kKeep});
  open(policy_.treatment(0));
}

Tape::~Tape() {
  while (open_.size() > 1) {
    // What follows the last cut is needed first: it stays.
    if (open_.back().treatment == TapePolicy::Treatment::kDrop) {
      open_.back().treatment = TapePolicy::Treatment::kKeep;
    }
    close();
  }
  if (wave_) wave_->prefetch();  // for what backward comes to after the last segments
  if (profiler_) profiler_->forward_ended();
}

Tape* Tape::current() { return dynamic_cast<Tape*>(compat::op_observer()); }

// ---- who is who

int Tape::memory_of(const torch::Tensor& tensor, Region* home) {
  const auto number = static_cast<int>(memories_.size());
  const auto [place, is_new] = memory_by_storage_.try_emplace(storage_of(tensor), number);
  if (is_new) {
    memories_.push_back({.storage = tensor.storage().getWeakStorageImpl(), .home = home});
    ledger_->writers.emplace_back();
  }
  return place->second;
}

int Tape::value_of(const torch::Tensor& tensor, int producer, Region* home) {
  const auto number = static_cast<int>(values_.size());
  const auto [place, is_new] = value_by_tensor_.try_emplace(tensor.unsafeGetTensorImpl(), number);
  if (!is_new) {
    const int memory = ledger_->values[static_cast<size_t>(place->second)].memory;
    const bool same =
        memory < 0 ||
        (tensor.has_storage() &&
         memories_[static_cast<size_t>(memory)].storage._unsafe_get_target() == storage_of(tensor));
    if (same) return place->second;
    place->second = number;  // set_data, swap: another value in the same tensor
    producer = -1;
    home = nullptr;
  }
  values_.push_back(
      {.tensor = WeakTensor(tensor.getIntrusivePtr()), .dtype = tensor.scalar_type()});
  const int memory = tensor.has_storage() ? memory_of(tensor, home) : -1;
  ledger_->values.push_back({.producer = producer, .memory = memory});
  if ((profiler_ || offload_) && memory >= 0) {
    memories_[static_cast<size_t>(memory)].values.push_back(number);
  }
  return number;
}

uint32_t Tape::version_of(int value) const {
  const int memory = ledger_->values[static_cast<size_t>(value)].memory;
  return memory < 0 ? 0
                    : static_cast<uint32_t>(ledger_->writers[static_cast<size_t>(memory)].size());
}

Region* Tape::home_of(int value) const {
  const auto& entry = ledger_->values[static_cast<size_t>(value)];
  if (entry.memory < 0 || entry.producer < 0) return nullptr;
  return memories_[static_cast<size_t>(entry.memory)].home;
}

bool Tape::is_inside(int value) const {
  const auto* home = home_of(value);
  return home && region()->contains(home);
}

// The one KeptValue of this value as it is now, owned by the innermost region that sees both its
// making and this use of it.
std::shared_ptr<KeptValue> Tape::kept(int value, const torch::Tensor& tensor, int time, Use use) {
  const bool is_view = use == Use::kSaveOfView;
  auto& seen = values_[static_cast<size_t>(value)];
  const auto version = version_of(value);
  auto* const home = home_of(value);
  auto* const owner = home ? Region::common(home, region().get()) : root_.get();
  std::erase_if(seen.kept, [](const auto& entry) { return entry.expired(); });
  for (const auto& entry : seen.kept) {
    auto known = entry.lock();
    if (!known || known->origin().version != version || !known->has_geometry_of(tensor)) continue;
    auto before = known->region();
    const bool was_alone = before && before->is_for_one_value();
    if (was_alone) before = before->parent();
    if (before) {
      auto* const both = Region::common(before.get(), owner);
      // What rebuilds one value lives only as long as autograd's interest in that value.
      if (both != before.get() || (was_alone && use == Use::kSource)) {
        if (both == root_.get()) {
          known->set_region(nullptr);
        } else {
          both->add(known);
        }
        if (!known->is_here()) known->take_back(tensor);
      }
    }
    if (!is_view) known->is_no_view();
    return known;
  }
  auto fresh = std::make_shared<KeptValue>(
      tensor,
      KeptValue::Origin{.value = value, .version = version, .time = time, .is_view = is_view});
  if (owner != root_.get()) owner->add(fresh);
  seen.kept.push_back(fresh);
  return fresh;
}

// ---- ops

void Tape::add_input(OpRecord& record, const torch::Tensor& tensor, int argument, int element) {
  const auto& traits = record.traits->arguments[static_cast<size_t>(argument)];
  OpInput input{.argument = argument,
                .element = element,
                .value = value_of(tensor, -1, nullptr),
                .requires_grad = tensor.requires_grad(),
                .written = traits.written,
                .statistics = traits.statistics};
  input.version = version_of(input.value);
  // To write to what a replay starts from would change it for the next one.
  if (input.written && !is_inside(input.value)) record.can_replay = false;
  if (const int made = ledger_->values[static_cast<size_t>(input.value)].producer;
      input.written && made >= 0) {
    policy_.changes(made, record.index);
  }
  arguments_.push_back({.tensor = tensor, .input = record.inputs.size()});
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

// What replays will read, and this op writes to, is copied first.
void Tape::make_way(const OpRecord& record) const {
  if (!record.traits->writes && !record.traits->has_statistics) return;
  const OffTheRecord quiet;
  for (const auto& argument : arguments_) {
    const auto& input = record.inputs[argument.input];
    if (input.written || input.statistics) KeptValue::before_write(argument.tensor);
  }
}

// In a segment that is kept, only what rebuilds single values is.
bool Tape::may_be_called_again(const OpRecord& record) const {
  if (!record.can_replay) return false;
  return open_.back().treatment != TapePolicy::Treatment::kKeep || record.traits->is_view ||
         policy_.rebuilds_results_of(record);
}

// Values from elsewhere are what a replay starts from.
void Tape::keep_inputs(OpRecord& record) {
  for (const auto& argument : arguments_) {
    auto& input = record.inputs[argument.input];
    if (is_inside(input.value)) continue;
    input.kept = kept(input.value, argument.tensor, record.index, Use::kSource);
    input.kept->become_source();
    if (profiler_ && home_of(input.value)) {
      const int memory = ledger_->values[static_cast<size_t>(input.value)].memory;
      profiler_->kept(block_of(memory), input.kept);
    }
  }
}

void Tape::read_results(OpRecord& record, const torch::jit::Stack& stack) {
  const auto& traits = *record.traits;
  // Results that the user fills through a pointer cannot be made again by calling the op.
  const bool is_factory = record.inputs.empty() || traits.is_factory;
  auto* const home = is_factory || !record.can_replay ? nullptr : region().get();
  const auto add = [&](const torch::Tensor& tensor) {
    if (!tensor.defined()) return record.outputs.emplace_back();
    record.outputs.push_back({.value = value_of(tensor, record.index, home),
                              .numel = tensor.numel(),
                              .dtype = tensor.scalar_type()});
    return record.outputs.back();
  };
  for (size_t i = stack.size() - traits.results; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      add(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      for (const auto& tensor : stack[i].toTensorVector()) add(tensor);
    }
  }
}

void Tape::call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (running_) return op.callBoxed(stack);  // an op that calls back into the user's code
  const auto& traits = OpTraits::of(op);
  if (open_.size() == 2 && policy_.cut_before_op(*this, traits)) cut();
  if (closed_) send_out();
  auto record = std::make_shared<OpRecord>(next_op_, op, traits);
  arguments_.clear();
  saved_now_.clear();
  read_arguments(*record, *stack);
  make_way(*record);
  if (may_be_called_again(*record)) keep_inputs(*record);
  if (traits.may_draw) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    for (const auto& argument : record->arguments) {
      if (argument.isGenerator()) generator = argument.toGenerator();
    }
    record->draws.emplace(std::move(generator));
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
  if (profiler_) profile_before(*record);
  op.callBoxed(stack);
  if (profiler_) profiler_->op_returned();
  if (record->draws && !record->draws->has_moved()) record->draws.reset();
  for (const auto& argument : arguments_) {
    const auto& input = record->inputs[argument.input];
    const int memory = ledger_->values[static_cast<size_t>(input.value)].memory;
    if (!(input.written || input.statistics) || memory < 0) continue;
    auto& writers = ledger_->writers[static_cast<size_t>(memory)];
    if (writers.empty() || writers.back() != record->index) writers.push_back(record->index);
    // From here on it holds what no replay will make.
    if (input.written && !record->can_replay) memories_[static_cast<size_t>(memory)].home = nullptr;
  }
  read_results(*record, *stack);
  records_.push_back(record);
  ++next_op_;
  ++report_.ops;
  // What it made and wrote to itself does not speak against it.
  can_rebuild_.push_back(1);
  can_rebuild_.back() =
      record->can_replay && std::ranges::all_of(record->inputs, [&](const OpInput& input) {
        return input.kept || can_rebuild(ledger_->values[static_cast<size_t>(input.value)]);
      });
  if (profiler_) profile_after(*record);
  for (const auto& slot : saved_now_) settle(*slot, record.get());
}

bool Tape::can_rebuild(const Ledger::Value& value) const {
  const auto good = [&](int op) {
    return op >= first_record_ && can_rebuild_[static_cast<size_t>(op - first_record_)];
  };
  return good(value.producer) &&
         (value.memory < 0 ||
          std::ranges::all_of(ledger_->writers[static_cast<size_t>(value.memory)], good));
}

// ---- saved tensors

std::unique_ptr<compat::SavedTensor> Tape::save(const torch::Tensor& tensor) {
  auto slot = std::make_shared<Slot>();
  slot->tensor = tensor.tensor_data();
  slot->address = tensor.unsafeGetTensorImpl();
  slot->version_counter = tensor.unsafeGetTensorImpl()->version_counter();
  slot->version = slot->version_counter.current_version();
  ++report_.saves;
  if (running_) {
    slot->save = running_->saves++;
    slot->op = &running_->traits->name;
    slot->op_index = running_->index;
    slot->profiler = profiler_;
    saved_now_.push_back(slot);
  } else {
    settle(*slot, nullptr);
  }
  return std::make_unique<Saved>(std::move(slot));
}

// The user's tensor that was saved, or one that shares its memory; -1: none.
int Tape::value_saved(const Slot& slot, int memory, const OpRecord* record) const {
  const auto fits = [&](int value) {
    return value >= 0 && ledger_->values[static_cast<size_t>(value)].memory == memory &&
           values_[static_cast<size_t>(value)].dtype == slot.tensor.scalar_type();
  };
  const auto place = value_by_tensor_.find(slot.address);
  if (place != value_by_tensor_.end() && fits(place->second)) return place->second;
  if (!record) return -1;
  for (const auto& input : record->inputs) {
    if (fits(input.value)) return input.value;
  }
  for (const auto& output : record->outputs) {
    if (fits(output.value)) return output.value;
  }
  return -1;
}

// Autograd often saves a view of what the user passed (a linear flattens its input): the user's own
// tensor is kept then, since replays can start from it.
std::shared_ptr<KeptValue> Tape::kept_for(Slot& slot, int value) {
  const auto& seen = values_[static_cast<size_t>(value)];
  if (seen.tensor._unsafe_get_target() == slot.address) {
    return kept(value, slot.tensor, next_op_, Use::kSave);
  }
  const torch::Tensor itself(seen.tensor.lock());
  if (!itself.defined()) return kept(value, slot.tensor, next_op_, Use::kSaveOfView);
  slot.view = std::make_unique<Slot::View>(Slot::View{.sizes = slot.tensor.sizes().vec(),
                                                      .strides = slot.tensor.strides().vec(),
                                                      .offset = slot.tensor.storage_offset()});
  return kept(value, itself, next_op_, Use::kSave);
}

// Finds out what a saved tensor is, once the op that saved it is over.
void Tape::settle(Slot& slot, OpRecord* record) {
  slot.region = region();
  // Written to inside the op that saved it: as with autograd itself, backward will refuse it.
  const bool is_stale = slot.version_counter.current_version() != slot.version;
  if (!is_strided(slot.tensor) || is_stale) return;
  const auto place = memory_by_storage_.find(storage_of(slot.tensor));
  if (place != memory_by_storage_.end()) {
    const int value = value_saved(slot, place->second, record);
    if (value < 0 || !home_of(value)) return;  // from outside: as autograd would
    slot.kept = kept_for(slot, value);
  } else if (record && record->can_replay) {
    slot.kept = std::make_shared<KeptValue>(
        slot.tensor, KeptValue::Origin{.op = record->index, .save = slot.save});
    region()->add(slot.kept);
  } else {
    return;
  }
  if (profiler_ && record) profile_save(slot, *record);
  slot.kept->add_reader();
  report_.saved_bytes += slot.kept->bytes();
  if (slot.kept->region()) segment_bytes_ += slot.kept->bytes();
  slot.tensor.reset();
  treat(slot, record);
}

// Gives a value up at once where the policy says so.
void Tape::treat(Slot& slot, OpRecord* record) {
  auto& kept = *slot.kept;
  const auto owner = kept.region();
  if (!owner || !kept.is_here()) {
    if (owner && region()->contains(owner.get())) slot.region = owner;
    return;
  }
  if (owner != region() || kept.is_source()) return;
  const auto& origin = kept.origin();
  const auto value = origin.op >= 0 ? Ledger::Value{.producer = origin.op}
                                    : ledger_->values[static_cast<size_t>(origin.value)];
  if (value.producer < first_record_) return;
  auto& maker = *records_[static_cast<size_t>(value.producer - first_record_)];
  if (kept.readers() == 1 && policy_.rebuilds_results_of(maker) && rebuild_alone(slot, maker)) {
    return;
  }
  if (open_.back().treatment != TapePolicy::Treatment::kDropAtOnce || !can_rebuild(value)) return;
  if (record) {
    const OffTheRecord quiet;
    Region::remember_mask(*record, origin.save, kept.tensor());
  }
  kept.give_up();
}

// ---- the profile

int Tape::block_of(int memory) {
  auto& entry = memories_[static_cast<size_t>(memory)];
  if (entry.block < 0 && entry.home) {
    const auto* storage = entry.storage._unsafe_get_target();
    const auto bytes = counted_bytes(storage->nbytes());
    entry.block = profiler_->add_block({.bytes = bytes, .made = next_op_ - 1, .can_leave = true});
    watched_.push_back(memory);
  }
  return entry.block;
}

void Tape::profile_before(const OpRecord& record) {
  std::erase_if(watched_, [&](int memory) {
    auto& entry = memories_[static_cast<size_t>(memory)];
    const bool held = std::ranges::any_of(entry.values, [&](int value) {
      return values_[static_cast<size_t>(value)].tensor.use_count() > 0;
    });
    if (!held) profiler_->block(entry.block).dead = record.index;
    return !held;
  });
  profiler_->op_begins(record.index);
}

void Tape::profile_after(const OpRecord& record) {
  auto& op = profiler_->op();
  op.name = record.traits->name;
  op.can_replay = record.can_replay;
  op.is_view = record.traits->is_view;
  std::vector<torch::Tensor> tensors;
  for (const auto& argument : arguments_) tensors.push_back(argument.tensor);
  op.cost = op_cost(record, tensors);
  const auto add = [](std::vector<int>& list, int item) {
    if (std::ranges::find(list, item) == list.end()) list.push_back(item);
  };
  for (const auto& input : record.inputs) {
    const auto& value = ledger_->values[static_cast<size_t>(input.value)];
    if (value.memory < 0 || !memories_[static_cast<size_t>(value.memory)].home) continue;
    if (value.producer >= 0) add(op.needs, value.producer);
    for (const int writer : ledger_->writers[static_cast<size_t>(value.memory)]) {
      if (writer < record.index) add(op.needs, writer);
    }
    const int block = block_of(value.memory);
    add(op.reads, block);
    if (input.written) add(profiler_->block(block).writers, record.index);
  }
  for (const auto& output : record.outputs) {
    if (output.value < 0) continue;
    const auto& value = ledger_->values[static_cast<size_t>(output.value)];
    if (value.memory < 0 || !memories_[static_cast<size_t>(value.memory)].home) continue;
    const bool is_new = memories_[static_cast<size_t>(value.memory)].block < 0;
    const int block = block_of(value.memory);
    if (!is_new) continue;
    op.makes.push_back(block);
    op.made_bytes += profiler_->block(block).bytes;
  }
}

void Tape::profile_save(const Slot& slot, const OpRecord& record) {
  auto& op = profiler_->op();
  const auto& origin = slot.kept->origin();
  int block = -1;
  if (origin.value >= 0) {
    block = block_of(ledger_->values[static_cast<size_t>(origin.value)].memory);
  } else {
    const auto bytes = counted_bytes(slot.tensor.storage().nbytes());
    block = profiler_->add_block({.bytes = bytes,
                                  .made = record.index,
                                  .dead = record.index,
                                  .is_mask = op.name == "aten::dropout",
                                  .element_size = slot.tensor.element_size()});
    op.makes.push_back(block);
    op.made_bytes += bytes;
  }
  if (block < 0) return;
  profiler_->kept(block, slot.kept);
  if (std::ranges::find(op.saves, block) == op.saves.end()) op.saves.push_back(block);
}

// ---- values rebuilt one by one

bool Tape::collect(int value, uint32_t version, int time,
                   std::map<int, std::shared_ptr<OpRecord>>& ops,
                   std::vector<std::shared_ptr<KeptValue>>& sources) {
  for (const auto& entry : values_[static_cast<size_t>(value)].kept) {
    const auto known = entry.lock();
    if (!known || known->origin().version != version || known->origin().is_view) continue;
    const bool comes_back = !known->is_here() && known->region() == region();
    if (known->is_intact() || comes_back) {
      sources.push_back(known);
      return true;
    }
  }
  const auto& ledger = ledger_->values[static_cast<size_t>(value)];
  if (!is_inside(value) || !collect_op(ledger.producer, ops, sources)) return false;
  return std::ranges::all_of(ledger_->writers[static_cast<size_t>(ledger.memory)], [&](int writer) {
    return writer >= time || collect_op(writer, ops, sources);
  });
}

bool Tape::collect_op(int op, std::map<int, std::shared_ptr<OpRecord>>& ops,
                      std::vector<std::shared_ptr<KeptValue>>& sources) {
  if (op < first_record_) return false;
  if (ops.contains(op)) return true;
  const auto& record = records_[static_cast<size_t>(op - first_record_)];
  if (!record->can_replay) return false;
  if (!record->traits->is_view && !policy_.rebuilds_results_of(*record)) return false;
  ops.emplace(op, record);
  return std::ranges::all_of(record->inputs, [&](const OpInput& input) {
    const auto owner = input.kept ? input.kept->region() : nullptr;
    const bool is_kept = input.kept && (!owner || owner->contains(region().get()));
    return is_kept || collect(input.value, input.version, op, ops, sources);
  });
}

// A value that comes back by a replay of its own.
void Tape::give_to(const std::shared_ptr<Region>& alone, Slot& slot) {
  alone->add(slot.kept);
  slot.region = alone;
  ++report_.given_up;
  report_.given_up_bytes += slot.kept->bytes();
}

// The mask of a dropout, whatever becomes of what the dropout read.
bool Tape::rebuild_from_bits(Slot& slot, OpRecord& producer) {
  auto& kept = *slot.kept;
  {
    const OffTheRecord quiet;
    Region::remember_mask(producer, kept.origin().save, kept.tensor());
  }
  if (!producer.mask) return false;
  kept.give_up();
  const auto alone = std::make_shared<Region>(region(), ledger_, producer.index);
  alone->set_records({producer.mask_alone()});
  give_to(alone, slot);
  return true;
}

bool Tape::rebuild_alone(Slot& slot, OpRecord& producer) {
  auto& kept = *slot.kept;
  const auto& origin = kept.origin();
  if (origin.op >= 0 && rebuild_from_bits(slot, producer)) return true;
  std::map<int, std::shared_ptr<OpRecord>> ops;
  std::vector<std::shared_ptr<KeptValue>> sources;
  const auto tensor = kept.tensor();
  kept.give_up();  // so that it does not count as its own source
  bool possible = collect_op(producer.index, ops, sources);
  if (possible && origin.value >= 0) {
    const int memory = ledger_->values[static_cast<size_t>(origin.value)].memory;
    possible = std::ranges::all_of(ledger_->writers[static_cast<size_t>(memory)], [&](int writer) {
      return writer >= origin.time || collect_op(writer, ops, sources);
    });
  }
  if (!possible) {
    kept.take_back(tensor);
    return false;
  }
  const auto alone = std::make_shared<Region>(region(), ledger_, producer.index);
  std::vector<std::shared_ptr<OpRecord>> records;
  records.reserve(ops.size());
  for (auto& [index, record] : ops) records.push_back(std::move(record));
  alone->set_records(std::move(records));
  for (auto& source : sources) {
    source->become_source();
    alone->own_source(std::move(source));
  }
  give_to(alone, slot);
  return true;
}

// ---- segments and regions

void Tape::open(TapePolicy::Treatment treatment) {
  regions_.push_back(std::make_shared<Region>(region(), ledger_, next_op_));
  open_.push_back({.region = regions_.back(), .treatment = treatment});
}

void Tape::close() {
  const OffTheRecord quiet;
  const auto closing = open_.back();
  open_.pop_back();
  const auto first = static_cast<size_t>(closing.region->first_op() - first_record_);
  if (closing.treatment == TapePolicy::Treatment::kKeep) {
    closing.region->hand_over(region() == root_ ? nullptr : region().get());
  } else {
    const auto dropped = closing.region->drop(
        {records_.begin() + static_cast<std::ptrdiff_t>(first), records_.end()});
    report_.given_up += dropped.values;
    report_.given_up_bytes += dropped.bytes;
    for (const auto& [op, bytes] : dropped.kept) {
      ++report_.kept_by_need;
      report_.kept_by_need_bytes += bytes;
      report_.kept_ops[op] += bytes;
    }
  }
  if (region() == root_) {
    records_.clear();
    can_rebuild_.clear();
    first_record_ = next_op_;
  }
}

void Tape::cut() {
  if (next_op_ == open_.back().region->first_op()) return;  // nothing in it
  const auto closed = region();
  close();
  if (offload_) {
    if (policy_.sends_out(segment_)) list_for_offload();
    closed_ = closed;
  }
  ++segment_;
  ++report_.segments;
  segment_bytes_ = 0;
  segment_first_value_ = values_.size();
  open(policy_.treatment(segment_));
}

void Tape::list_for_offload() {
  for (size_t value = segment_first_value_; value < values_.size(); ++value) {
    const int memory = ledger_->values[value].memory;
    if (memory >= 0 && home_of(static_cast<int>(value))) may_leave_.insert(memory);
  }
}

// Memory made before the segment that ended last, and held by nobody but backward. It goes when the
// next op comes: `x = checkpoint(layer(x), "name")` still holds the old x while it cuts.
void Tape::send_out() {
  const OffTheRecord quiet;
  const auto closed = std::exchange(closed_, nullptr);
  const auto wave = std::make_shared<AwayWave>();
  offload_->drain(offload_->max_queued);
  std::erase_if(may_leave_, [&](int number) {
    const auto& memory = memories_[static_cast<size_t>(number)];
    const auto storage = memory.storage.lock();
    if (!storage || !memory.home || !offload_->takes(*storage)) return true;
    if (closed->contains(memory.home)) return false;
    std::vector<std::shared_ptr<KeptValue>> held;
    for (const int value : memory.values) {
      for (const auto& weak : values_[static_cast<size_t>(value)].kept) {
        auto kept = weak.lock();
        // One that was written to since has moved out already.
        if (!kept || !kept->is_here() || storage_of(kept->tensor()) != storage.get()) continue;
        if (kept->region() || !kept->is_intact()) return false;
        held.push_back(std::move(kept));
      }
    }
    if (held.empty() || storage.use_count() != held.size() + 1) return false;
    const auto away = offload_->send(c10::Storage(storage), wave);
    for (const auto& kept : held) kept->leave(away);
    return true;
  });
  if (offload_->waits) offload_->drain(0);
  if (wave->members.empty()) return;
  wave->before = std::exchange(wave_, wave);
}

void Tape::checkpoint(std::string_view name, const torch::Tensor& x) {
  policy_.meets(name, x);
  if (profiler_) profiler_->checkpoint_before(next_op_);
  const bool cuts = policy_.cut_at(name);
  if (cuts && open_.size() == 2 && !running_) cut();
}

void Tape::open_region() { open(TapePolicy::Treatment::kDrop); }

void Tape::close_region(TapePolicy::Treatment treatment) {
  open_.back().treatment = treatment;
  close();
}

int Tape::live_in_segment(int limit) const {
  int live = 0;
  std::vector<int> counted;
  for (size_t value = segment_first_value_; value < values_.size(); ++value) {
    const int memory = ledger_->values[value].memory;
    if (memory < 0 || memories_[static_cast<size_t>(memory)].home != region().get()) continue;
    if (values_[value].tensor.use_count() == 0) continue;
    if (std::ranges::find(counted, memory) != counted.end()) continue;
    counted.push_back(memory);
    if (++live > limit) break;
  }
  return live;
}

}  // namespace fleet::memory
