#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "fleet/memory/away_memory.h"
#include "fleet/memory/tape.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/memory_report.h"

namespace fleet {

/// What `strategy.recompute` adds to a forward: a tape that records it and gives up what backward
/// can make again, and with enable_offload a file for what it keeps.
///
///   MemoryStrategy memory(strategy.recompute_configs);
///   MemoryStrategy::Forward forward(&memory);
///   const auto loss = closure();
///   forward.finish();   // then backward
class MemoryStrategy {
 public:
  /// Makes the policy of one forward.
  using MakePolicy = std::function<std::shared_ptr<memory::TapePolicy>()>;

  /// Cuts at the checkpoints that are named there.
  explicit MemoryStrategy(const RecomputeConfigs& configs);
  /// For whoever finds the cuts otherwise.
  MemoryStrategy(const RecomputeConfigs& configs, MakePolicy make_policy);
  ~MemoryStrategy();
  MemoryStrategy(const MemoryStrategy&) = delete;
  MemoryStrategy& operator=(const MemoryStrategy&) = delete;

  /// Records this thread's ops until `finish`; null: does nothing.
  class Forward {
   public:
    explicit Forward(MemoryStrategy* memory);
    /// Throws when the first forward did not name a checkpoint that was asked for.
    void finish();

   private:
    MemoryStrategy* memory_;
    std::shared_ptr<memory::TapePolicy> policy_;
    std::optional<memory::Offload> offload_;
    std::optional<memory::TapeScope> scope_;
  };

  /// Of what happened since the last call; says it once, after the first update.
  MemoryReport report_of_call(bool updated);
  /// A call failed: what is in the file is of no use, and the next forward opens another.
  void forget();

 private:
  class NamedCheckpoints;
  void add(const memory::TapeReport& tape);
  void say_once();

  RecomputeConfigs configs_;
  std::shared_ptr<NamedCheckpoints> named_;  // null: others make the policy
  MakePolicy make_policy_;
  std::shared_ptr<memory::OffloadFile> file_;
  memory::OffloadStatistics counted_;  // of `file_`, reported already
  MemoryReport report_;
  std::optional<memory::TapeReport> first_;
  bool said_ = false;
};

}  // namespace fleet
