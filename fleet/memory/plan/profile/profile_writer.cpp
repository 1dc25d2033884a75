// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/profile/profile_writer.h"

#include <algorithm>

namespace fleet::memory {
namespace {

void add_once(std::vector<int>& list, int item) {
  if (std::ranges::find(list, item) == list.end()) list.push_back(item);
}

}  // namespace

int ProfileWriter::block_of(int storage, int op) {
  auto& entry = values_.storage(storage);
  if (entry.block < 0 && entry.defining_region) {
    const auto bytes = counted_bytes(entry.storage._unsafe_get_target()->nbytes());
    entry.block = profiler_->add_block({.bytes = bytes, .made = op, .can_offload = true});
    watched_.push_back(storage);
  }
  return entry.block;
}

// What a factory made, or an op that is not replayed: no plan decides on it, but it takes memory
// until the program, autograd and the replays' inputs have let go of it.
void ProfileWriter::add_outside(int storage, int op) {
  if (storage < 0) return;
  auto& entry = values_.storage(storage);
  if (entry.block >= 0 || entry.predates_forward) return;
  const auto bytes = counted_bytes(entry.storage._unsafe_get_target()->nbytes());
  entry.block = profiler_->add_block({.bytes = bytes, .made = op});
  watched_.push_back(storage);
}

void ProfileWriter::starts_from(const OpRecord& record, int value,
                                const std::shared_ptr<KeptValue>& kept) {
  if (!values_.defining_region_of(value)) return;
  profiler_->kept(block_of(values_.storage_id_of(value), record.index), kept);
}

void ProfileWriter::op_begins(const OpRecord& record) {
  std::erase_if(watched_, [&](int storage) {
    const auto& entry = values_.storage(storage);
    const bool held =
        entry.defining_region
            ? std::ranges::any_of(entry.values, [&](int value) { return values_[value].is_held(); })
            : entry.storage.use_count() > 0;
    if (!held) profiler_->block(entry.block).dead = record.index;
    return !held;
  });
  profiler_->op_begins(record.index);
}

void ProfileWriter::op_ended(const OpRecord& record, const std::vector<torch::Tensor>& arguments) {
  auto& op = profiler_->op();
  op.name = record.traits->name;
  op.can_replay = record.can_replay;
  op.is_view = record.traits->is_view;
  op.cost = op_cost(record, arguments);
  const auto is_inside = [&](const ProvenanceTable::Value& value) {
    return value.storage >= 0 && values_.storage(value.storage).defining_region;
  };
  const auto& provenance = *values_.provenance();
  for (const auto& input : record.inputs) {
    if (input.constant) op.constant_bytes += input.constant->bytes();
    const auto& value = provenance.value(input.value);
    if (!is_inside(value)) continue;
    if (value.producer >= 0) add_once(op.needs, value.producer);
    for (const int writer : provenance.writers_of(value.storage)) {
      if (writer < record.index) add_once(op.needs, writer);
    }
    const int block = block_of(value.storage, record.index);
    add_once(op.reads, block);
    if (input.written) add_once(profiler_->block(block).writers, record.index);
  }
  for (const auto& output : record.outputs) {
    if (output.value < 0) continue;
    const auto& value = provenance.value(output.value);
    if (!is_inside(value)) {
      add_outside(value.storage, record.index);
      continue;
    }
    const bool is_new = values_.storage(value.storage).block < 0;
    const int block = block_of(value.storage, record.index);
    if (!is_new) continue;
    op.makes.push_back(block);
    op.made_bytes += profiler_->block(block).bytes;
  }
}

void ProfileWriter::saved(const OpRecord* record, const std::shared_ptr<KeptValue>& kept,
                          const torch::Tensor& tensor) {
  auto& op = profiler_->op();
  const auto& origin = kept->origin();
  int block = -1;
  if (origin.value >= 0) {
    block = block_of(values_.storage_id_of(origin.value), profiler_->last_op());
  } else {
    const auto bytes = counted_bytes(tensor.storage().nbytes());
    block = profiler_->add_block({.bytes = bytes,
                                  .made = record->index,
                                  .dead = record->index,
                                  .is_mask = origin.save >= 0 &&
                                             record->traits->mask_save == origin.save &&
                                             MaskBits::can_hold(tensor),
                                  .element_size = tensor.element_size()});
    op.makes.push_back(block);
    op.made_bytes += bytes;
  }
  if (block < 0) return;
  profiler_->kept(block, kept);
  add_once(op.saves, block);
}

}  // namespace fleet::memory
