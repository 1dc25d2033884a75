#include "fleet/train/distributed_optimizer.h"

#include <cmath>

#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/metrics/step_line.h"
#include "fleet/parallel/sync_batch_norm.h"
#include "fleet/train/strategy_check.h"

namespace fleet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void check_loss(const torch::Tensor& loss, double weight) {
  if (!loss.defined() || loss.numel() != 1) {
    throw Error(
        "minimize",
        loss.defined()
            ? format("the loss has {} elements, and only one number can be minimized", loss.numel())
            : std::string("the closure returned an undefined tensor"),
        "return a mean (torch::mean), or WeightedLoss{.sum, .weight}");
  }
  if (!loss.requires_grad()) {
    throw Error("minimize", "the loss does not depend on any trainable parameter",
                "do not compute it under NoGradGuard, from detached tensors, or by .item()");
  }
  if (!(std::isfinite(weight) && weight >= 0)) {
    throw Error("minimize", format("the loss weighs {}", weight), "give a weight of at least 0");
  }
}

}  // namespace

struct DistributedOptimizer::State {
  std::unique_ptr<optim::Optimizer> optimizer;
  DistributedStrategy strategy;
  std::shared_ptr<comm::Communicator> comm;
  std::shared_ptr<comm::Communicator> norm_comm;  // for sync_batch_norm
  std::unique_ptr<ParameterArena> arena;
  std::unique_ptr<DataParallel> parallel;
  // Losses are divided by this before backward, so that gradients come out as means without another
  // pass: the ranks' usual weight together, agreed on once. Where a window weighs otherwise it is
  // corrected.
  double usual_weight = 0;
  double total_seconds = 0;

  void agree_on_usual_weight(double own) {
    const auto agreed = torch::full({1}, own, torch::kDouble);
    comm->all_reduce(agreed, comm::ReduceOp::kMax, "the usual weight of an update");
    usual_weight = agreed.item<double>() * comm->size();
    if (usual_weight == 0) usual_weight = 1;
  }

  void make_means(double weight) {
    if (weight == usual_weight) return;
    const torch::NoGradGuard no_grad;
    for (const auto& group : arena->groups()) group.gradients.mul_(usual_weight / weight);
  }
};

DistributedOptimizer::DistributedOptimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                           const DistributedStrategy& strategy,
                                           std::shared_ptr<comm::Communicator> comm)
    : state_(std::make_unique<State>()) {
  auto& s = *state_;
  const auto remarks = check(
      strategy, {.world_size = comm->size(), .optimizer_name = std::string(optimizer->name())});
  auto resolved = strategy.resolved();
  s.strategy = std::move(resolved.strategy);
  s.optimizer = std::move(optimizer);
  s.comm = std::move(comm);
  log::plain(s.strategy.overview());
  for (const auto& note : resolved.notes) log::info("strategy", note);
  for (const auto& remark : remarks) log::info("strategy", remark);

  s.arena = std::make_unique<ParameterArena>(s.optimizer->model());
  s.optimizer->bind(*s.arena);
  s.parallel = std::make_unique<DataParallel>(
      *s.arena, s.comm,
      DataParallelOptions{
          .fuse_all_reduce_ops = s.strategy.fuse_all_reduce_ops,
          .fuse_grad_size_in_MB = static_cast<double>(s.strategy.fuse_grad_size_in_MB),
          .last_comm_group_size_MB = s.strategy.last_comm_group_size_MB,
          .fp16_allreduce = s.strategy.fp16_allreduce,
          .find_unused_parameters = s.strategy.find_unused_parameters});
  s.parallel->broadcast(s.optimizer->model());
  if (s.strategy.sync_batch_norm) s.norm_comm = s.comm->duplicate("sync_batch_norm");
}

DistributedOptimizer::~DistributedOptimizer() = default;
DistributedOptimizer::DistributedOptimizer(DistributedOptimizer&&) noexcept = default;

UpdateReport DistributedOptimizer::minimize(const std::function<Loss()>& loss) {
  return update({{.weight = 1, .loss = loss}});
}

UpdateReport DistributedOptimizer::minimize_samples(int64_t samples,
                                                    const std::function<Loss()>& loss) {
  if (samples > 0) return update({{.weight = static_cast<double>(samples), .loss = loss}});
  if (state_->strategy.sync_batch_norm) {
    throw Error("minimize",
                "this rank has an empty batch, and sync_batch_norm needs samples on every rank",
                "drop the last short batch");
  }
  return update({});
}

/// A checked loss; `value` times `to_sum` is the sum over what it weighs.
struct DistributedOptimizer::PartLoss {
  torch::Tensor value;
  double weight = 0;
  double to_sum = 1;
  double sum = 0;
};

DistributedOptimizer::PartLoss DistributedOptimizer::forward(const Part& part) {
  const SyncBatchNormScope sync_batch_norm(state_->norm_comm);
  const auto loss = part.loss();
  PartLoss result;
  if (const auto* mean = std::get_if<torch::Tensor>(&loss)) {
    result = {.value = *mean, .weight = part.weight, .to_sum = part.weight};
  } else {
    const auto& weighted = std::get<WeightedLoss>(loss);
    result = {.value = weighted.sum, .weight = weighted.weight};
  }
  check_loss(result.value, result.weight);
  const auto value = result.value.item<double>();
  if (!std::isfinite(value)) {
    throw Error("minimize",
                format("the loss is {} at update {} on rank {}; nothing was updated", value,
                       updates() + 1, state_->comm->rank()),
                "lower the learning rate, warm it up, or look for bad samples");
  }
  result.sum = value * result.to_sum;
  return result;
}

UpdateReport DistributedOptimizer::update(const std::vector<Part>& parts) {
  auto& s = *state_;
  const auto begin = Clock::now();
  double weight = 0;
  double loss_sum = 0;
  s.arena->begin_window();
  for (const auto& part : parts) {
    const auto loss = forward(part);
    weight += loss.weight;
    loss_sum += loss.sum;
    if (s.usual_weight == 0) s.agree_on_usual_weight(weight * static_cast<double>(parts.size()));
    const bool is_last = &part == &parts.back();
    if (is_last) s.parallel->listen(weight, loss_sum);
    (loss.value * (loss.to_sum / s.usual_weight)).backward();
  }
  if (parts.empty()) {
    if (s.usual_weight == 0) s.agree_on_usual_weight(0);
    s.parallel->sit_out();
  }
  const auto reduced = s.parallel->wait();
  if (!(reduced.weight > 0)) {
    throw Error("minimize", "no rank had anything to learn from: all batches were empty");
  }
  s.make_means(reduced.weight);
  const double lr = s.optimizer->lr();
  s.optimizer->step(reduced.used);

  UpdateReport report;
  report.update = updates();
  report.loss = reduced.loss / reduced.weight;
  report.weight = reduced.weight;
  report.lr = lr;
  report.seconds = seconds_since(begin);
  report.total_seconds = s.total_seconds += report.seconds;
  report.exposed_communication_s = s.parallel->exposed_seconds();
  return report;
}

double DistributedOptimizer::lr() const { return state_->optimizer->lr(); }
void DistributedOptimizer::set_lr(double lr) { state_->optimizer->set_lr(lr); }
int64_t DistributedOptimizer::updates() const { return state_->optimizer->steps(); }
const DistributedStrategy& DistributedOptimizer::strategy() const { return state_->strategy; }
const ParameterArena& DistributedOptimizer::arena() const { return *state_->arena; }
const optim::Optimizer& DistributedOptimizer::optimizer() const { return *state_->optimizer; }

DistributedOptimizer distributed_optimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                           const DistributedStrategy& strategy) {
  return DistributedOptimizer(std::move(optimizer), strategy, world());
}

void log_step(const UpdateReport& report) {
  log::plain(step_line({.worker_index = is_initialized() ? worker_index() : 0,
                        .step = report.update - 1,
                        .cost = report.loss,
                        .step_time_s = report.seconds,
                        .total_time_s = report.total_seconds}));
}

}  // namespace fleet
