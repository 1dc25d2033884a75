// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fleet/core/options/options.h"
#include "fleet/parallel/local_sgd.h"
#include "fleet/snapshot/snapshot_contents.h"
#include "fleet/snapshot/snapshot_folder.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/update/training_counters.h"

namespace fleet {

/// training.json: what all ranks have in common. With several optimizers NAME.training.json says of
/// each what training.json says of one alone, and training.json which there are.
struct TrainingRecord {
  static constexpr int kFormat = 1;         // one optimizer without a name
  static constexpr int kFormatOfNames = 2;  // several, models of their own, or values

  int format = 0;
  int64_t step = 0;  ///< the snapshot's own number
  int64_t world_size = 1;
  bool local_sgd = false;                    ///< ranks have parameters of their own
  bool has_data = false;                     ///< a position in the data was kept
  std::vector<std::string> optimizers = {};  ///< their names; none: one without a name
  std::vector<std::string> models = {};
  std::vector<std::string> values = {};
  std::string optimizer = {};
  DistributedStrategy strategy = {};
};
const FieldList& fields_of(const TrainingRecord*);

/// rank-N.json, or NAME.rank-N.json: what is rank N's own of one optimizer.
struct RankRecord {
  TrainingCounters counters = {};
  LocalSgd::State local_sgd = {};
};
const FieldList& fields_of(const RankRecord*);

inline constexpr const char* kTrainingFile = "training.json";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
std::string rank_file(int64_t rank);          ///< rank-0.json
std::string rank_data_file(int64_t rank);     ///< rank-0.data.json
std::string rank_values_file(int64_t rank);   ///< rank-0.values.json
std::string rank_tensors_file(int64_t rank);  ///< rank-0.safetensors
/// generator.model.safetensors; for the name "" as it is.
std::string file_of(const std::string& name, const std::string& file);

/// Of one optimizer.
TrainingRecord training_record(DistributedOptimizer& optimizer);
/// Throws in the middle of a window of `minimize(closure)`.
RankRecord rank_record(DistributedOptimizer& optimizer);
/// Of all.
TrainingRecord training_record(const SnapshotContents& contents);

/// Names of optimizers that a snapshot has files of: {""} for one without a name.
std::vector<std::string> optimizers_in(const TrainingRecord& record);
/// The files that the ranks have in common, and those of one rank.
std::vector<std::string> common_files(const TrainingRecord& record);
std::vector<std::string> files_of_rank(const TrainingRecord& record, int64_t rank);

/// Reads training.json, and sees that the snapshot has all the files that it should have.
TrainingRecord read_training_record(const SnapshotReader& snapshot);
/// That of one optimizer.
TrainingRecord read_training_record(const SnapshotReader& snapshot, const std::string& name);
RankRecord read_rank_record(const SnapshotReader& snapshot, const std::string& name, int64_t rank);

/// Throws one Error with the names of optimizers, models and values that a snapshot has and
/// `contents` lack, or the other way round.
void check_names(const TrainingRecord& record, const SnapshotContents& contents,
                 const std::string& source);

/// "amp was false and is now true"
std::vector<std::string> differences(const DistributedStrategy& then,
                                     const DistributedStrategy& now);

}  // namespace fleet
