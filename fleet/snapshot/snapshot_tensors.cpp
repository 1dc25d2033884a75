// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_tensors.h"

#include <algorithm>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"
#include "fleet/data/split_mix.h"

namespace fleet {
namespace {

// A flat tensor of the arena's lengths, cut as its parameters are.
void add_spans(const ParameterArena& arena, const std::vector<torch::Tensor>& groups,
               const std::string& prefix, std::vector<NamedTensor>& to) {
  for (const auto& span : arena.spans()) {
    to.push_back({prefix + span.name, groups[span.group].as_strided(
                                          span.value.sizes(), span.value.strides(),
                                          groups[span.group].storage_offset() + span.offset)});
  }
}

// A number for each parameter.
void add_numbers(const ParameterArena& arena, const torch::Tensor& numbers,
                 const std::string& prefix, std::vector<NamedTensor>& to) {
  if (!numbers.defined()) return;
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    to.push_back({prefix + arena.spans()[static_cast<size_t>(i)].name, numbers.select(0, i)});
  }
}

void add(const std::vector<NamedTensor>& tensors, const std::string& prefix,
         std::vector<NamedTensor>& to) {
  for (const auto& [name, tensor] : tensors) to.push_back({prefix + name, tensor.detach()});
}

void add_values(const ParameterArena& arena, const std::string& prefix,
                std::vector<NamedTensor>& to) {
  for (const auto& span : arena.spans()) to.push_back({prefix + span.name, span.value.detach()});
}

std::vector<at::Generator> generators_of(const ParameterArena& arena) {
  std::vector<at::Generator> generators = {at::detail::getDefaultCPUGenerator()};
  const auto device = arena.groups().front().values.device();
  if (!device.is_cpu()) generators.push_back(at::globalContext().defaultGenerator(device));
  return generators;
}

std::string name_of(const at::Generator& generator) {
  return format("{}{}", kGeneratorNames, c10::Device(generator.device().type()).str());
}

std::string opaque_name(const DistributedOptimizer& optimizer) {
  return format("{}{}", kOpaqueStateNames, optimizer.optimizer().name());
}

}  // namespace

SnapshotTensors snapshot_tensors(DistributedOptimizer& optimizer, ModelTensors which) {
  const auto& arena = optimizer.arena();
  arena.refresh_masters();
  const bool is_first = optimizer.comm()->index() == 0;
  auto* const local = optimizer.local_sgd();
  SnapshotTensors tensors;
  const auto buffers = optimizer.optimizer().model().buffers();
  if (local && which == ModelTensors::kCommon) {
    local->before_step();
    add_spans(arena, local->state().anchor, "", tensors.model);
    add_values(arena, "parameter/", tensors.own);
  } else {
    add_values(arena, "", tensors.model);
  }
  add(arena.frozen(), "", tensors.model);
  add(buffers, "", tensors.model);
  if (!is_first) add(buffers, "buffer/", tensors.own);
  for (const auto& [name, groups] : optimizer.optimizer().state()) {
    add_spans(arena, groups, name + "/", tensors.optimizer);
    if (local && !is_first) add_spans(arena, groups, name + "/", tensors.own);
  }
  const auto& updates = optimizer.optimizer().span_updates();
  add_numbers(arena, updates, "updates/", tensors.optimizer);
  if (local && !is_first) add_numbers(arena, updates, "updates/", tensors.own);
  if (local) {
    const auto state = local->state();
    const std::string prefix(kLocalSgdNames);
    if (!state.velocity.empty()) {
      add_spans(arena, state.velocity, prefix + "velocity/", tensors.optimizer);
    }
    for (size_t i = 0; i < state.buffers.size(); ++i) {
      tensors.optimizer.push_back({format("{}buffer/{}", prefix, i), state.buffers[i]});
    }
  }
  for (const auto& hook : optimizer.hooks()) {
    add(hook->state(), std::string(hook->name()) + "/", tensors.optimizer);
  }
  return tensors;
}

SnapshotTensors snapshot_tensors(const ModelHandle& model, const comm::Communicator& comm,
                                 bool ranks_differ) {
  const auto parameters = model.parameters(), buffers = model.buffers();
  SnapshotTensors tensors;
  add(parameters, "", tensors.model);
  add(buffers, "", tensors.model);
  if (comm.index() == 0) return tensors;
  if (ranks_differ) add(parameters, "parameter/", tensors.own);
  add(buffers, "buffer/", tensors.own);
  return tensors;
}

std::vector<NamedTensor> generator_states(const ParameterArena& arena) {
  std::vector<NamedTensor> states;
  for (const auto& generator : generators_of(arena)) {
    auto own = generator;
    const std::scoped_lock lock(own.mutex());
    states.push_back({name_of(own), own.get_state()});
  }
  return states;
}

void set_generator_states(const SafetensorsFile& file, const ParameterArena& arena) {
  for (auto& generator : generators_of(arena)) {
    const auto* entry = file.find(name_of(generator));
    if (entry == nullptr) continue;  // written on another kind of device
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(file.read(*entry));
  }
}

void seed_generators(const SafetensorsFile& rank_0, const ParameterArena& arena, int64_t rank,
                     int64_t step) {
  set_generator_states(rank_0, arena);
  reseed_generators(arena, rank, step);
}

void reseed_generators(const ParameterArena& arena, int64_t rank, int64_t step) {
  for (auto& generator : generators_of(arena)) {
    const std::scoped_lock lock(generator.mutex());
    const auto seed = static_cast<int64_t>(generator.current_seed());
    generator.set_current_seed(SplitMix64({seed, rank, step}).next());
  }
}

std::vector<NamedTensor> opaque_states(DistributedOptimizer& optimizer) {
  const bool is_own = optimizer.comm()->index() == 0 || optimizer.local_sgd() != nullptr;
  if (!optimizer.optimizer().has_opaque_state() || !is_own) return {};
  return {{opaque_name(optimizer), optimizer.optimizer().opaque_state()}};
}

void check_opaque_state(const SafetensorsFile& file, const DistributedOptimizer& optimizer) {
  const auto& own = optimizer.optimizer();
  std::string found;
  for (const auto& entry : file.entries()) {
    if (entry.name.starts_with(kOpaqueStateNames)) found = entry.name;
  }
  if (found == (own.has_opaque_state() ? opaque_name(optimizer) : "")) return;
  throw UsageError(
      "snapshot",
      format("{} was written with {}, and this training has {}", file.path().string(),
             found.empty() ? "an optimizer of Fleet's" : found.substr(kOpaqueStateNames.size()),
             own.name()),
      "resume with the optimizer that wrote it, or choose another --snapshot_dir");
}

void set_opaque_state(const SafetensorsFile& file, DistributedOptimizer& optimizer) {
  if (!optimizer.optimizer().has_opaque_state()) return;
  optimizer.optimizer().set_opaque_state(file.read(*file.find(opaque_name(optimizer))));
}

void check_fit(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors,
               const std::vector<std::string_view>& optional) {
  std::vector<std::string> problems, missing;
  std::set<std::string> known;
  const auto may_differ = [&](const std::string& name) {
    return std::ranges::any_of(optional, [&](auto prefix) { return name.starts_with(prefix); });
  };
  for (const auto& [name, tensor] : tensors) {
    known.insert(name);
    const auto* entry = file.find(name);
    if (entry != nullptr && tensor.sizes() != at::IntArrayRef(entry->shape)) {
      problems.push_back(format("mismatched: {} is {} there and {} here", name,
                                shape_text(entry->shape), shape_text(tensor.sizes())));
    }
    if (entry == nullptr && !may_differ(name)) missing.push_back(name);
  }
  for (const auto& name : missing) problems.push_back("missing: " + name);
  for (const auto& entry : file.entries()) {
    if (known.contains(entry.name) || may_differ(entry.name)) continue;
    problems.push_back("unexpected: " + entry.name + did_you_mean(entry.name, missing));
  }
  if (problems.empty()) return;
  throw UsageError::all(
      "snapshot", format("{} is of another model or optimizer", file.path().string()), problems,
      "resume the training that wrote it, or choose another --snapshot_dir; "
      "fleet::load_weights takes the model.safetensors of a snapshot alone");
}

void read_tensors(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (const auto* entry = file.find(name)) file.read_into(*entry, tensor);
  }
}

}  // namespace fleet
