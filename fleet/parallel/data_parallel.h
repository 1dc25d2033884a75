// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/comm/transport/shared_memory/shared_area.h"
#include "fleet/core/model_handle.h"
#include "fleet/core/parameter_arena.h"

namespace fleet {

/// How gradients are put into buckets and sent.
struct DataParallelOptions {
  bool fuse_all_reduce_ops = true;      // off: one all-reduce per parameter
  double fuse_grad_size_in_MB = 32;     // MiB of one fused all-reduce
  double last_comm_group_size_MB = 1;   // MiB of the last one, which nothing hides
  bool fp16_allreduce = false;          // send gradients as half, at half the traffic
  bool find_unused_parameters = false;  // on: parameters without a gradient on any rank are skipped
};

/// A contiguous span of gradients that is reduced at once. The last one to be reduced also holds
/// the metadata.
struct Bucket {
  size_t group = 0;
  int64_t begin = 0;  // elements of the group
  int64_t end = 0;
  std::vector<size_t> spans;
};

/// Cuts an arena into buckets in the order in which backward fills them: from the last parameter to
/// the first.
std::vector<Bucket> plan_buckets(const ParameterArena& arena, const DataParallelOptions& options);

/// What a rank adds to an update, beside gradients.
struct Contribution {
  double weight = 1;
  double loss = 0;
  double micro_batches = 1;            // that were merged into its gradients
  std::optional<int64_t> samples = 0;  // unset: not known
  bool is_resized = false;             // its batch has another size than was agreed on
};

/// What the ranks know of each other's gradients after `wait`.
struct ReducedMetadata {
  double weight = 0;  // sums over all ranks
  double loss = 0;
  double micro_batches = 0;
  std::optional<int64_t> samples = {};  // set where all ranks know theirs
  bool is_resized = false;              // some rank's batch is
  int ranks = 1;                        // whose gradients were summed
  std::vector<bool> used;               // per span: some rank had a gradient
  bool stop = false;                    // some rank was asked to stop, and all of them know it now
  /// By rank: what it computed for, without waiting for others. Empty in the first update, with one
  /// rank, and in an arena without metadata slots for it.
  std::vector<double> compute_seconds = {};
};

/// Sums gradients over the ranks while backward is still running. Each bucket is a span of the
/// gradient arena, sent from where it lies as soon as its last gradient is ready, in the same
/// order on every rank; nothing is copied. Afterwards every rank holds the same gradients, bit for
/// bit. Ranks on one machine add up in each other's memory; others through the communicator.
///
/// A parameter that got no gradient on this rank counts as zeros; one that got none on any rank is
/// an error that names it, or, with `find_unused_parameters`, is reported in
/// `ReducedMetadata::used`.
///
///   DataParallel parallel(arena, comm, {});
///   parallel.broadcast(net);                  // all ranks start alike
///   arena.begin_window();
///   parallel.arm();                           // before the backward that completes the gradients
///   (loss / comm->size()).backward();
///   parallel.wait();                          // grad() now holds the mean over all ranks
class DataParallel {
 public:
  DataParallel(ParameterArena& arena, std::shared_ptr<comm::Communicator> comm,
               const DataParallelOptions& options);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Checks that all ranks hold the same model, then gives them rank 0's parameters and buffers.
  void broadcast(const ModelHandle& model);

  /// Whether, from the next `arm` on, gradients stay this rank's own: nothing is sent, and
  /// `wait` gives what this rank has.
  void set_no_sync(bool no_sync) { no_sync_ = no_sync || comm_->size() == 1; }

  /// From here on the gradients that become ready are final, and are sent. What this rank adds to
  /// the update is summed along.
  void arm(const Contribution& own = {});
  /// For a rank without samples: it adds zeros to all sums, without a backward.
  void contribute_zeros(bool is_resized = false);
  ReducedMetadata wait();

  /// What a rank does from here to the end of its backward counts as its computing for the next
  /// update; without this call nothing is counted.
  void begin_computing() { computing_since_ = std::chrono::steady_clock::now(); }
  /// Of the last update, on this rank.
  double computed_seconds() const { return computed_seconds_; }

  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Seconds that the last `wait` really waited: communication that backward did not hide.
  double exposed_seconds() const { return exposed_seconds_; }

 private:
  void on_gradient(size_t span);
  void launch_ready();
  void launch(size_t bucket);
  void fill_metadata();
  void end_computing();
  bool has_metadata_slots() const;
  torch::Tensor bucket_tensor(size_t bucket) const;
  comm::Work sum(const torch::Tensor& tensor, const std::string& what);
  ReducedMetadata read_metadata() const;

  ParameterArena& arena_;
  std::shared_ptr<comm::Communicator> comm_;
  std::shared_ptr<comm::SharedArea> area_;  // holds the gradients where all ranks share a machine
  DataParallelOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_span_;
  std::vector<size_t> missing_;    // per bucket: gradients that are not ready yet
  std::vector<bool> has_arrived_;  // per span, in this backward
  std::vector<comm::Work> pending_;
  std::vector<torch::Tensor> halves_;
  size_t next_ = 0;
  bool is_armed_ = false;
  bool no_sync_ = false;
  Contribution own_;
  double exposed_seconds_ = 0;
  std::optional<std::chrono::steady_clock::time_point> computing_since_;
  double computed_seconds_ = 0;  // 0: not counted
};

}  // namespace fleet
