// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/core/model_handle.h"
#include "fleet/io/safetensors.h"
#include "fleet/train/distributed_optimizer.h"

namespace fleet {

/// Whose parameters stand under the model's names.
enum class ModelTensors {
  kCommon,  // with local SGD the last average; else the parameters themselves
  kValues,  // the parameters themselves
};

/// The tensors of a training where they lie, by name: what a snapshot is copied from and read into.
struct SnapshotTensors {
  std::vector<NamedTensor> model;      // parameters (masters, if there are any) and buffers
  std::vector<NamedTensor> optimizer;  // "velocity/fc.weight", "updates/fc.weight"; local SGD's as
                                       // "local_sgd.velocity/", a hook's under its name
  std::vector<NamedTensor> own;        // of this rank alone
};
SnapshotTensors snapshot_tensors(DistributedOptimizer& optimizer, ModelTensors which);
/// Of a model that no optimizer trains. `ranks_differ`: in parameters; in buffers they always may.
SnapshotTensors snapshot_tensors(const ModelHandle& model, const comm::Communicator& comm,
                                 bool ranks_differ);

/// Random generators that a training draws from by default, as "generator/cpu".
std::vector<NamedTensor> generator_states(const ParameterArena& arena);
void set_generator_states(const SafetensorsFile& file, const ParameterArena& arena);
/// For a rank that has no state of its own: drawn from the seed in rank 0's file, rank and step.
void seed_generators(const SafetensorsFile& rank_0, const ParameterArena& arena, int64_t rank,
                     int64_t step);
/// The same from the seed that they have.
void reseed_generators(const ParameterArena& arena, int64_t rank, int64_t step);

/// State that only the optimizer can read and write (optim::TorchOptimizer), as bytes whose number
/// changes; none where it is the same as rank 0's, or where the optimizer has none.
std::vector<NamedTensor> opaque_states(DistributedOptimizer& optimizer);
/// From the file of the rank whose state it is; `check_` throws where another kind of optimizer
/// wrote it.
void check_opaque_state(const SafetensorsFile& file, const DistributedOptimizer& optimizer);
void set_opaque_state(const SafetensorsFile& file, DistributedOptimizer& optimizer);

/// Throws one Error with all names and shapes that do not fit. `optional`: beginnings of names that
/// may be there or not.
void check_fit(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors,
               const std::vector<std::string_view>& optional = {});
/// Those that the file has.
void read_tensors(const SafetensorsFile& file, const std::vector<NamedTensor>& tensors);

/// Names in an optimizer's file that only local SGD has.
inline constexpr std::string_view kLocalSgdNames = "local_sgd.";
/// And those in a rank's file that are not tensors of the training.
inline constexpr std::string_view kGeneratorNames = "generator/";
inline constexpr std::string_view kOpaqueStateNames = "optimizer/";

}  // namespace fleet
