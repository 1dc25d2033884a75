// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/hand_over.h"

#include <cstring>
#include <string>
#include <vector>

#include "fleet/comm/elastic/elastic_group.h"
#include "fleet/core/error.h"
#include "fleet/core/options/options_json.h"
#include "fleet/core/process/restart_needed.h"
#include "fleet/core/text/format.h"
#include "fleet/snapshot/snapshot_records.h"
#include "fleet/snapshot/snapshot_tensors.h"

namespace fleet {
namespace {

/// What does not lie in tensors.
struct HandedNumbers {
  std::vector<std::string> optimizers = {};  // a RankRecord each
  int64_t last_step = 0;
  std::string data = {};
  std::string values = {};
};

const FieldList& fields_of(const HandedNumbers*) {
  using H = HandedNumbers;
  static const FieldList list{.area = "elastic",
                              .fields = {
                                  field<&H::optimizers>("optimizers", "of the rank that tells"),
                                  field<&H::last_step>("last_step", "of the last snapshot"),
                                  field<&H::data>("data", "where the next batch is"),
                                  field<&H::values>("values", "of the program's own"),
                              }};
  return list;
}

// Of one length whoever tells, as another rank may have to tell it instead.
constexpr int64_t kWords = 8192;

torch::Tensor as_words(const std::string& text) {
  if (std::ssize(text) >= kWords * 8) {
    throw Error("elastic",
                format("the position in the data and the own values take {} bytes, and {} travel "
                       "to a restarted rank",
                       text.size(), kWords * 8));
  }
  auto words = torch::zeros({kWords}, torch::kLong);
  std::memcpy(words.data_ptr(), text.data(), text.size());
  return words;
}

std::string as_text(const torch::Tensor& words) {
  return static_cast<const char*>(words.const_data_ptr());
}

// Everything that ranks have in common after an average, and what a new one needs of another.
std::vector<torch::Tensor> tensors_of(DistributedOptimizer& optimizer) {
  std::vector<torch::Tensor> tensors;
  const auto add = [&](const std::vector<torch::Tensor>& more) {
    tensors.insert(tensors.end(), more.begin(), more.end());
  };
  const auto& arena = optimizer.arena();
  arena.refresh_masters();
  for (const auto& group : arena.groups()) tensors.push_back(group.values);
  for (const auto& item : optimizer.optimizer().state()) add(item.groups);
  if (const auto& updates = optimizer.optimizer().span_updates(); updates.defined()) add({updates});
  const auto local = optimizer.local_sgd()->state();
  add(local.anchor);
  add(local.velocity);
  add(local.buffers);
  for (const auto& [name, tensor] : arena.frozen()) tensors.push_back(tensor.detach());
  for (const auto& [name, tensor] : optimizer.optimizer().model().buffers()) {
    tensors.push_back(tensor.detach());
  }
  for (const auto& hook : optimizer.hooks()) {
    for (const auto& [name, tensor] : hook->state()) tensors.push_back(tensor.detach());
  }
  return tensors;
}

// What has a type that does not travel (bool, int32) goes as int64.
torch::Tensor to_travel(const torch::Tensor& tensor) {
  const bool travels = torch::isFloatingType(tensor.scalar_type());
  return tensor
      .to(travels ? tensor.scalar_type() : torch::kLong, /*non_blocking=*/false,
          /*copy=*/true)
      .contiguous();
}

void take_over(DistributedOptimizer& optimizer, const RankRecord& record) {
  auto* const local = optimizer.local_sgd();
  auto state = local->state();  // with the tensors that were told
  state.step = record.local_sgd.step;
  state.window = record.local_sgd.window;
  state.interval = record.local_sgd.interval;
  local->set_state(state);
  auto counters = record.counters;
  counters.batch_samples = counters.first_sample = -1;  // the other rank's own
  optimizer.set_counters(counters);
  reseed_generators(optimizer.arena(), optimizer.comm()->rank(), optimizer.attempts());
}

std::vector<torch::Tensor> tensors_of(const SnapshotContents& contents) {
  std::vector<torch::Tensor> tensors;
  for (const auto& item : contents.optimizers) {
    const auto more = tensors_of(*item.optimizer);
    tensors.insert(tensors.end(), more.begin(), more.end());
  }
  for (const auto& item : contents.models) {
    for (const auto& list : {item.model.parameters(), item.model.buffers()}) {
      for (const auto& [name, tensor] : list) tensors.push_back(tensor.detach());
    }
  }
  return tensors;
}

std::string numbers_of(const SnapshotContents& contents, int64_t last_step) {
  if (contents.before_save) contents.before_save();
  HandedNumbers numbers{.last_step = last_step,
                        .data = contents.data.to_json(),
                        .values = write_values(contents.values)};
  for (const auto& item : contents.optimizers) {
    numbers.optimizers.push_back(write_json(rank_record(*item.optimizer), RankRecord{}));
  }
  return write_json(numbers, HandedNumbers{});
}

void take_over(const SnapshotContents& contents, int64_t& last_step, const std::string& text) {
  const std::string source = "what the other ranks told";
  HandedNumbers numbers;
  read_json(numbers, text, source);
  FLEET_ASSERT(numbers.optimizers.size() == contents.optimizers.size(),
               "ranks of a job run the same program");
  for (size_t i = 0; i < numbers.optimizers.size(); ++i) {
    RankRecord record;
    read_json(record, numbers.optimizers[i], source);
    take_over(*contents.optimizers[i].optimizer, record);
  }
  contents.data.restore(numbers.data, source, /*other_ranks=*/false);
  read_values(contents.values, numbers.values, source, /*tensors=*/nullptr)();
  last_step = numbers.last_step;
}

}  // namespace

void check_can_hand_over(const SnapshotContents& contents) {
  for (const auto& value : contents.values) {
    if (!value.is_tensor()) continue;
    throw Error("elastic",
                format("the value '{}' is a tensor, and a restarted rank cannot be told its "
                       "shape",
                       value.name()),
                "keep it as numbers, or in a model (SnapshotContents::models)");
  }
}

void hand_over(const SnapshotContents& contents, int64_t& last_step, HandOverSide side) {
  const torch::NoGradGuard no_grad;
  const auto tensors = tensors_of(contents);
  std::vector<torch::Tensor> told;
  for (const auto& tensor : tensors) told.push_back(to_travel(tensor));
  told.push_back(as_words(numbers_of(contents, last_step)));

  auto& group = *contents.comm()->elastic();
  group
      .submit({.kind = comm::Collective::Kind::kBroadcast,
               .tensors = told,
               .what = "the state of the training"})
      .get();
  if (side == HandOverSide::kReceiver) {
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(told[i]);
    take_over(contents, last_step, as_text(told.back()));
  }
  group.finish_admission();
}

void check_all_present(const comm::Communicator& comm, std::string_view when) {
  const auto& group = comm.elastic();
  if (!group || group->is_joining()) return;
  const auto present = group->present();
  if (std::ssize(present) == comm.size()) return;
  throw RestartNeeded(
      "elastic",
      format("{} of {} ranks were lost {}, where the others cannot continue without them",
             comm.size() - std::ssize(present), comm.size(), when),
      "restart all ranks: fleetrun does so with --max_restarts");
}

}  // namespace fleet
