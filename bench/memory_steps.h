// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/memory/allocator/memory_counter.h"
#include "fleet/memory/offload/offload_file.h"
#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/plan/profile/step_profile.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"

#include "bench/report.h"

namespace fleet::bench {

// What the benchmarks of memory share: nets, and steps of them by several methods.

/// All tensors on the CPU are counted here, while a BudgetAllocatorScope is there.
memory::MemoryCounter& counter();

struct Net {
  std::string name;
  std::function<void(int64_t samples)> make_batch;  // unless it exists already
  std::function<torch::Tensor()> loss;              // of that batch
  std::vector<torch::Tensor> parameters;
  std::vector<std::string> checkpoints;
};

/// Of the width of BERT-base.
Net two_bert_blocks();

/// Each net with its gradients, and a batch that is small for it. `hidden`: of 24 blocks of BERT;
/// `images`: the batch of ResNet50.
void for_each_net(int64_t hidden, int64_t images,
                  const std::function<void(const Net& net, int64_t samples)>& work);

/// How a step is run.
struct Way {
  std::string name;
  std::function<std::unique_ptr<memory::TapePolicy>()> policy = nullptr;  // null: plain
  const memory::Offload* offload = nullptr;
  std::shared_ptr<const memory::Plan> plan = nullptr;
};

/// As a program is run before it has a plan.
Way evict_on_demand();
/// With cuts at these checkpoints.
Way named(std::string way, std::vector<std::string> names);
/// Every n-th name, about sqrt(all) of them.
std::vector<std::string> square_root(const std::vector<std::string>& names);

/// A file beside, how fast it is, and whether plans may use it.
struct Disk {
  memory::Offload offload{std::make_shared<memory::OffloadFile>()};
  memory::OffloadFile::Speed speed = offload.file->measure();

  Disk() { offload.max_queued = 0; }

  /// None, where there is no disk.
  static memory::OffloadFile::Speed speed_of(const Disk* disk) {
    return disk ? disk->speed : memory::OffloadFile::Speed{};
  }
};

/// By a plan; nothing where none fits.
std::optional<Way> planned(std::string name, const memory::StepProfile& profile, int64_t budget,
                           const Disk* disk = nullptr);

struct Step {
  double seconds = 0;
  int64_t peak = 0;  // above what was live before
};

Step run(const Net& net, int64_t samples, const Way& way,
         const std::shared_ptr<memory::Profiler>& profiler = nullptr);
memory::StepProfile profile_of(const Net& net, int64_t samples);

inline constexpr double kMiB = 1024.0 * 1024.0;
inline double mib(int64_t bytes) { return static_cast<double>(bytes) / kMiB; }

/// Parameters included, as a user would count.
Row predicted_row(const std::string& name, const Way& way, int64_t base, int64_t peak);

/// For benchmarks that take some minutes: rows are printed as they come.
class RowPrinter {
 public:
  explicit RowPrinter(const std::vector<Row>& rows) : rows_(rows) {}
  void print_new();

 private:
  const std::vector<Row>& rows_;
  size_t printed_ = 0;
};

}  // namespace fleet::bench
