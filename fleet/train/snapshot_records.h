#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fleet/core/options.h"
#include "fleet/io/snapshot_folder.h"
#include "fleet/parallel/local_sgd.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/training_counters.h"

namespace fleet {

/// training.json: what all ranks have in common.
struct TrainingRecord {
  static constexpr int kFormat = 1;

  int format = 0;
  int64_t step = 0;  ///< the snapshot's own number
  int64_t world_size = 1;
  bool local_sgd = false;  ///< ranks have parameters of their own
  bool has_data = false;   ///< a position in the data was kept
  std::string optimizer = {};
  DistributedStrategy strategy = {};
};
const FieldList& fields_of(const TrainingRecord*);

/// rank-N.json: what is rank N's own.
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
std::string rank_tensors_file(int64_t rank);  ///< rank-0.safetensors

TrainingRecord training_record(DistributedOptimizer& optimizer, bool has_data);
/// Throws in the middle of a window of `minimize(closure)`.
RankRecord rank_record(DistributedOptimizer& optimizer);

/// Reads training.json, and sees that the snapshot has all the files that it should have.
TrainingRecord read_training_record(const SnapshotReader& snapshot);
RankRecord read_rank_record(const SnapshotReader& snapshot, int64_t rank);

/// "amp was false and is now true"
std::vector<std::string> differences(const DistributedStrategy& then,
                                     const DistributedStrategy& now);

}  // namespace fleet
