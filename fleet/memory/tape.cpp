#include "fleet/memory/tape.h"

#include <algorithm>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "fleet/memory/off_the_record.h"
#include "fleet/memory/rebuild_recipe.h"
#include "fleet/memory/replay_rules.h"
#include "fleet/memory/tensor_storage.h"

namespace fleet::memory {
namespace {

// Tensors deeper in a value than in lists are not followed.
bool hides_tensors(const c10::IValue& value) {
  if (value.isTuple() || value.isGenericDict() || value.isObject()) return true;
  if (!value.isList()) return false;
  return !value.toListRef().empty() && value.toListRef()[0].isTensor();
}

}  // namespace

Tape::Tape(TapePolicy& policy, std::shared_ptr<Profiler> profiler, const Offload* offload)
    : policy_(policy),
      values_(/*lists_values=*/profiler || offload),
      root_(std::make_shared<Region>(nullptr, values_.ledger(), 0)) {
  if (profiler && offload) profiler->leave_out(offload->file);
  if (profiler) profile_.emplace(std::move(profiler), values_);
  if (offload) departures_.emplace(*offload, values_);
  regions_.push_back(root_);
  open_.push_back({.region = root_, .treatment = TapePolicy::Treatment::kKeep});
  open(policy_.treatment(0));
}

Tape::~Tape() {
  try {
    end();
  } catch (...) {  // whoever asks for what was evicted gets the error
    for (const auto& region : regions_) region->abandon();
  }
}

void Tape::end() {
  while (open_.size() > 1) {
    // What follows the last cut is needed first: it stays.
    if (open_.back().treatment == TapePolicy::Treatment::kDrop) {
      open_.back().treatment = TapePolicy::Treatment::kKeep;
    }
    close();
  }
  if (std::exchange(has_ended_, true)) return;
  if (departures_) departures_->forward_ended();
  if (profile_) profile_->profiler()->forward_ended();
}

Tape* Tape::current() { return dynamic_cast<Tape*>(compat::op_observer()); }

// ---- values

bool Tape::is_inside(int value) const {
  const auto* home = values_.home_of(value);
  return home && region()->contains(home);
}

// The one KeptValue of this value as it is now, owned by the innermost region that sees both its
// making and this use of it.
std::shared_ptr<KeptValue> Tape::kept(int value, const torch::Tensor& tensor, int time, Use use) {
  const bool is_view = use == Use::kSaveOfView;
  auto& seen = values_[value];
  const auto version = values_.version_of(value);
  auto* const home = values_.home_of(value);
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
  KeptValue::Origin origin{.value = value, .version = version, .time = time, .is_view = is_view};
  if (is_view) origin.from_value = tensor.storage_offset() - seen.offset;
  auto fresh = std::make_shared<KeptValue>(tensor, origin);
  if (owner != root_.get()) owner->add(fresh);
  seen.kept.push_back(fresh);
  return fresh;
}

// ---- ops

void Tape::add_input(OpRecord& record, const torch::Tensor& tensor, int argument, int element) {
  const auto& traits = record.traits->arguments[static_cast<size_t>(argument)];
  OpInput input{.argument = argument,
                .element = element,
                .value = values_.number_of(tensor, -1, nullptr),
                .requires_grad = tensor.requires_grad(),
                .written = traits.written,
                .statistics = traits.statistics};
  input.version = values_.version_of(input.value);
  // To write to what a replay starts from would change it for the next one.
  if (input.written && !is_inside(input.value)) record.can_replay = false;
  if (values_.is_borrowed(input.value)) record.can_replay = false;  // it may be gone by then
  if (const int made = values_.producer_of(input.value); input.written && made >= 0) {
    policy_.changes(made, record.index);
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

// What replays will read, and this op writes to, is copied first.
void Tape::make_way(const OpRecord& record) const {
  if (!record.traits->writes && !record.traits->has_statistics) return;
  const OffTheRecord quiet;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const auto& input = record.inputs[i];
    if (input.written || input.statistics) KeptValue::before_write(arguments_[i]);
  }
}

void Tape::after_write(const OpRecord& record) const {
  if (!record.traits->writes) return;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (record.inputs[i].written) KeptValue::after_write(arguments_[i]);
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
  for (size_t i = 0; i < arguments_.size(); ++i) {
    auto& input = record.inputs[i];
    if (is_inside(input.value)) continue;
    input.kept = kept(input.value, arguments_[i], record.index, Use::kSource);
    input.kept->become_source();
    if (profile_) profile_->starts_from(record, input.value, input.kept);
  }
}

void Tape::note_writes(const OpRecord& record) {
  for (const auto& input : record.inputs) {
    const int memory = values_.memory_of(input.value);
    if (!(input.written || input.statistics) || memory < 0) continue;
    values_.written(memory, record.index);
    // From here on it holds what no replay will make.
    if (input.written && !record.can_replay) values_.memory(memory).home = nullptr;
  }
}

void Tape::read_results(OpRecord& record, const torch::jit::Stack& stack) {
  const auto& traits = *record.traits;
  // Results that the user fills through a pointer cannot be made again by calling the op.
  const bool is_factory = record.inputs.empty() || traits.is_factory;
  auto* const home = is_factory || !record.can_replay ? nullptr : region().get();
  const auto add = [&](const torch::Tensor& tensor) {
    auto& output = record.outputs.emplace_back();
    if (!tensor.defined()) return;
    output = {.value = values_.number_of(tensor, record.index, home),
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

void Tape::call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (running_) return op.callBoxed(stack);  // an op that calls back into the user's code
  const auto& traits = OpTraits::of(op);
  if (open_.size() == 2 && policy_.cut_before_op(*this, traits)) cut();
  if (departures_ && departures_->are_due()) departures_->send();
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
  if (profile_) profile_->op_begins(*record);
  op.callBoxed(stack);
  if (profile_) profile_->profiler()->op_returned();
  if (record->draws && !record->draws->set_end()) record->draws.reset();
  after_write(*record);
  note_writes(*record);
  read_results(*record, *stack);
  records_.records.push_back(record);
  ++next_op_;
  ++report_.ops;
  // What it made and wrote to itself does not speak against it.
  can_rebuild_.push_back(1);
  can_rebuild_.back() =
      record->can_replay && std::ranges::all_of(record->inputs, [&](const OpInput& input) {
        return input.kept || can_rebuild(values_.ledger()->value(input.value));
      });
  if (profile_) {
    profile_->op_ended(*record, arguments_);
    profile_->profiler()->op().is_inside_recompute =
        open_.size() > 2 && open_[2].region->first_op() != record->index;
  }
  for (const auto& slot : saved_now_) settle(*slot, record.get());
}

bool Tape::can_rebuild(const Ledger::Value& value) const {
  const auto good = [&](int op) {
    return op >= records_.first_op && can_rebuild_[static_cast<size_t>(op - records_.first_op)];
  };
  return good(value.producer) &&
         (value.memory < 0 ||
          std::ranges::all_of(values_.ledger()->writers_of(value.memory), good));
}

// ---- saved tensors

std::unique_ptr<compat::SavedTensor> Tape::save(const torch::Tensor& tensor) {
  auto slot = std::make_shared<SavedSlot>(tensor);
  ++report_.saves;
  if (running_) {
    slot->save = running_->saves++;
    slot->op = &running_->traits->name;
    slot->op_index = running_->index;
    if (profile_) slot->profiler = profile_->profiler();
    saved_now_.push_back(slot);
  } else {
    settle(*slot, nullptr);
  }
  return std::make_unique<SlotHandle>(std::move(slot));
}

// The user's tensor that was saved, or one that shares its memory; -1: none.
int Tape::value_saved(const SavedSlot& slot, int memory, const OpRecord* record) const {
  const auto fits = [&](int value) {
    return value >= 0 && values_.memory_of(value) == memory &&
           values_[value].dtype == slot.tensor.scalar_type();
  };
  if (const int itself = values_.find(slot.address); fits(itself)) return itself;
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
std::shared_ptr<KeptValue> Tape::kept_for(SavedSlot& slot, int value) {
  const auto& seen = values_[value];
  if (seen.tensor._unsafe_get_target() == slot.address) {
    return kept(value, slot.tensor, next_op_, Use::kSave);
  }
  const torch::Tensor itself(seen.tensor.lock());
  // One that shares its memory need not reach as far: queries and keys in the result of one layer.
  if (!itself.defined() || !range_of(itself).contains(range_of(slot.tensor))) {
    return kept(value, slot.tensor, next_op_, Use::kSaveOfView);
  }
  slot.view = std::make_unique<SavedSlot::View>(
      SavedSlot::View{.sizes = slot.tensor.sizes().vec(),
                      .strides = slot.tensor.strides().vec(),
                      .offset = slot.tensor.storage_offset() - itself.storage_offset(),
                      .is_conj = slot.tensor.is_conj(),
                      .is_neg = slot.tensor.is_neg()});
  return kept(value, itself, next_op_, Use::kSave);
}

// Finds out what a saved tensor is, once the op that saved it is over.
void Tape::settle(SavedSlot& slot, OpRecord* record) {
  slot.region = region();
  // Written to inside the op that saved it: as with autograd itself, backward will refuse it.
  if (!is_strided(slot.tensor) || slot.is_stale()) return;
  if (const int memory = values_.find_memory(storage_of(slot.tensor)); memory >= 0) {
    const int value = value_saved(slot, memory, record);
    if (value < 0 || !values_.home_of(value)) return;  // from outside: as autograd would
    slot.kept = kept_for(slot, value);
  } else if (record && record->can_replay) {
    slot.kept = std::make_shared<KeptValue>(
        slot.tensor, KeptValue::Origin{.op = record->index, .save = slot.save});
    region()->add(slot.kept);
  } else {
    return;
  }
  if (profile_ && record) profile_->saved(*record, slot.kept, slot.tensor);
  slot.kept->add_reader();
  report_.saved_bytes += slot.kept->bytes();
  if (slot.kept->region()) segment_bytes_ += slot.kept->bytes();
  slot.tensor.reset();
  treat(slot, record);
}

// Gives a value up at once where the policy says so.
void Tape::treat(SavedSlot& slot, OpRecord* record) {
  auto& kept = *slot.kept;
  const auto owner = kept.region();
  if (!owner || !kept.is_here()) {
    if (owner && region()->contains(owner.get())) slot.region = owner;
    return;
  }
  if (owner != region() || kept.is_source()) return;
  const auto& origin = kept.origin();
  const auto value =
      origin.op >= 0 ? Ledger::Value{.producer = origin.op} : values_.ledger()->value(origin.value);
  const auto maker = records_.find(value.producer);
  if (!maker) return;
  if (kept.readers() == 1 && policy_.rebuilds_results_of(*maker) && rebuild_alone(slot, *maker)) {
    return;
  }
  if (open_.back().treatment != TapePolicy::Treatment::kDropAtOnce || !can_rebuild(value)) return;
  if (record) {
    const OffTheRecord quiet;
    Region::remember_mask(*record, origin.save, kept.tensor());
  }
  kept.give_up();
}

// ---- values rebuilt one by one

// A value that comes back by a replay of its own.
void Tape::give_to(const std::shared_ptr<Region>& alone, SavedSlot& slot) {
  alone->add(slot.kept);
  slot.region = alone;
  ++report_.given_up;
  report_.given_up_bytes += slot.kept->bytes();
}

// The mask of a dropout, whatever becomes of what the dropout read.
bool Tape::rebuild_from_bits(SavedSlot& slot, OpRecord& producer) {
  auto& kept = *slot.kept;
  {
    const OffTheRecord quiet;
    Region::remember_mask(producer, kept.origin().save, kept.tensor());
  }
  if (!producer.mask) return false;
  kept.give_up();
  const auto alone = std::make_shared<Region>(region(), values_.ledger(), producer.index);
  alone->set_records({producer.mask_alone()});
  give_to(alone, slot);
  return true;
}

bool Tape::rebuild_alone(SavedSlot& slot, OpRecord& producer) {
  auto& kept = *slot.kept;
  const auto& origin = kept.origin();
  if (origin.op >= 0 && rebuild_from_bits(slot, producer)) return true;
  const auto tensor = kept.tensor();
  kept.give_up();  // so that it does not count as its own source
  RebuildRecipe recipe(values_, policy_, records_, *region());
  bool possible = recipe.add_op(producer.index);
  if (possible && origin.value >= 0) {
    possible = recipe.add_writers(values_.memory_of(origin.value), origin.time);
  }
  if (!possible) {
    kept.take_back(tensor);
    return false;
  }
  give_to(recipe.region_in(region(), producer.index), slot);
  return true;
}

// ---- segments and regions

void Tape::open(TapePolicy::Treatment treatment) {
  regions_.push_back(std::make_shared<Region>(region(), values_.ledger(), next_op_));
  regions_.back()->set_open_records(&records_);
  open_.push_back({.region = regions_.back(), .treatment = treatment});
}

void Tape::close() {
  const OffTheRecord quiet;
  const auto closing = open_.back();
  open_.pop_back();
  if (closing.treatment == TapePolicy::Treatment::kKeep) {
    closing.region->hand_over(region() == root_ ? nullptr : region().get());
  } else {
    const auto first = closing.region->first_op() - records_.first_op;
    const auto dropped =
        closing.region->drop({records_.records.begin() + first, records_.records.end()});
    report_.given_up += dropped.values;
    report_.given_up_bytes += dropped.bytes;
    for (const auto& [op, bytes] : dropped.kept) {
      ++report_.kept_by_need;
      report_.kept_by_need_bytes += bytes;
      report_.kept_ops[op] += bytes;
    }
  }
  if (region() == root_) {
    records_ = {.first_op = next_op_};
    can_rebuild_.clear();
  }
}

void Tape::cut() {
  if (next_op_ == open_.back().region->first_op()) return;  // nothing in it
  const auto closed = region();
  close();
  if (departures_) {
    departures_->segment_ended(closed, segment_first_value_, policy_.sends_out(segment_));
  }
  ++segment_;
  ++report_.segments;
  segment_bytes_ = 0;
  segment_first_value_ = values_.size();
  open(policy_.treatment(segment_));
}

void Tape::checkpoint(std::string_view name, const torch::Tensor& x) {
  policy_.meets(name, x);
  if (profile_) profile_->profiler()->checkpoint_before(next_op_);
  const bool cuts = policy_.cut_at(name);
  if (cuts && open_.size() == 2 && !running_) cut();
}

void Tape::open_region() {
  if (open_.size() == 2 && !running_ && policy_.cut_before_recompute(*this)) cut();
  open(TapePolicy::Treatment::kDrop);
}

void Tape::close_region(TapePolicy::Treatment treatment) {
  open_.back().treatment = treatment;
  close();
}

int Tape::live_in_segment(int limit) const {
  int live = 0;
  std::vector<int> counted;
  for (int value = segment_first_value_; value < values_.size(); ++value) {
    const int memory = values_.memory_of(value);
    if (memory < 0 || values_.memory(memory).home != region().get()) continue;
    if (!values_[value].is_held()) continue;
    if (std::ranges::find(counted, memory) != counted.end()) continue;
    counted.push_back(memory);
    if (++live > limit) break;
  }
  return live;
}

}  // namespace fleet::memory
