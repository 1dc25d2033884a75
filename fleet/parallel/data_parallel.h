#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/comm/shared_area.h"
#include "fleet/core/model_handle.h"
#include "fleet/core/parameter_arena.h"

namespace fleet {

struct DataParallelOptions {
  bool fuse_all_reduce_ops = true;     // off: one all-reduce per parameter
  double fuse_grad_size_in_MB = 32;    // MiB of one fused all-reduce
  double last_comm_group_size_MB = 1;  // MiB of the last one, which nothing hides
  bool fp16_allreduce = false;         // send gradients as half, at half the traffic
  bool find_unused_parameters =
      false;  // on: parameters without a gradient on any rank are left alone
};

/// A contiguous span of gradients that is reduced at once. The last one to be reduced also holds
/// the head.
struct Bucket {
  size_t group = 0;
  int64_t begin = 0;  // elements of the group
  int64_t end = 0;
  std::vector<size_t> spans;
};

/// Cuts an arena into buckets in the order in which backward fills them: from the last parameter to
/// the first.
std::vector<Bucket> plan_buckets(const ParameterArena& arena, const DataParallelOptions& options);

/// What the ranks know of each other's gradients after `wait`.
struct ReducedHead {
  double weight = 0;  // sums over all ranks
  double loss = 0;
  double parts = 0;
  int ranks = 1;           // whose gradients were summed
  std::vector<bool> used;  // per span: some rank had a gradient
  bool stop = false;       // some rank was asked to stop, and all of them know it now
  /// By rank: what it computed for, without waiting for others. Empty in the first update, when
  /// alone, and in an arena without places for it.
  std::vector<double> compute_seconds = {};
};

/// Sums gradients over the ranks while backward is still running. Each bucket is a span of the
/// gradient arena, sent from where it lies as soon as its last gradient has landed, in the same
/// order on every rank; nothing is copied. Afterwards every rank holds the same gradients, bit for
/// bit. Ranks on one machine add up in each other's memory; others through the communicator.
///
/// A parameter that got no gradient on this rank counts as zeros; one that got none on any rank is
/// an error that names it, or, with `find_unused_parameters`, is reported in `ReducedHead::used`.
///
///   DataParallel parallel(arena, comm, {});
///   parallel.broadcast(net);                  // all ranks start alike
///   arena.begin_window();
///   parallel.listen();                        // before the backward that completes the gradients
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

  /// Whether, from the next `listen` on, gradients stay this rank's own: nothing is sent, and
  /// `wait` gives what this rank has.
  void set_alone(bool is_alone) { is_alone_ = is_alone || comm_->size() == 1; }

  /// From here on the gradients that land are final, and are sent. What they weigh, their loss and
  /// the number of parts that were merged into them are summed along.
  void listen(double weight = 1, double loss = 0, double parts = 1);
  /// A rank without samples takes part with zeros, without a backward.
  void sit_out();
  ReducedHead wait();

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
  void fill_head();
  void end_computing();
  bool has_places() const;
  torch::Tensor bucket_tensor(size_t bucket) const;
  comm::Pending sum(const torch::Tensor& tensor, const std::string& what);
  ReducedHead read_head() const;

  ParameterArena& arena_;
  std::shared_ptr<comm::Communicator> comm_;
  std::shared_ptr<comm::SharedArea> area_;  // holds the gradients where all ranks share a machine
  DataParallelOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_span_;
  std::vector<size_t> missing_;  // per bucket: gradients that have not landed yet
  std::vector<bool> arrived_;    // per span, in this backward
  std::vector<comm::Pending> pending_;
  std::vector<torch::Tensor> halves_;
  size_t next_ = 0;
  bool listening_ = false;
  bool is_alone_ = false;
  double weight_ = 0;
  double loss_ = 0;
  double parts_ = 0;
  double exposed_seconds_ = 0;
  std::optional<std::chrono::steady_clock::time_point> computing_since_;
  double computed_seconds_ = 0;  // 0: not counted
};

}  // namespace fleet
