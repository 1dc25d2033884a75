#include "fleet/train/memory_strategy.h"

#include <algorithm>

#include <c10/util/StringUtil.h>

#include "fleet/core/byte_size.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/nearest_name.h"
#include "fleet/memory/policies.h"

namespace fleet {
namespace {

constexpr const char* kArena = "parameters and gradients";

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 12;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kMost) text += format(" and {} more", names.size() - kMost);
  return text;
}

}  // namespace

// Cuts at the names of the configuration; the first forward must have them all.
class MemoryStrategy::NamedCheckpoints final : public memory::NamedCuts {
 public:
  explicit NamedCheckpoints(const RecomputeConfigs& configs)
      : NamedCuts(configs.checkpoints),
        shape_(configs.enable_offload ? configs.checkpoint_shape : std::vector<int64_t>()) {}

  void meets(std::string_view name, const torch::Tensor& x) override {
    if (proved_ || shape_.empty() || !names().contains(name)) return;
    if (x.sizes() == c10::IntArrayRef(shape_)) return;
    throw Error("recompute",
                format("checkpoint '{}' has shape {}, and recompute_configs.checkpoint_shape says "
                       "{}",
                       name, c10::str(x.sizes()), c10::str(c10::IntArrayRef(shape_))),
                "leave checkpoint_shape out: it is not needed");
  }

  void prove() {
    if (proved_) return;
    const std::vector<std::string> known(met().begin(), met().end());
    std::vector<std::string> problems;
    for (const auto& name : names()) {
      if (!met().contains(name))
        problems.push_back(format("'{}'{}", name, did_you_mean(name, known)));
    }
    if (problems.empty()) {
      proved_ = true;
    } else if (known.empty()) {
      throw Error::all(
          "recompute",
          "the forward names no tensor, so it cannot be cut at these checkpoints:", problems,
          "name them in the model: x = fleet::checkpoint(layer->forward(x), \"name\")");
    } else {
      throw Error::all("recompute", "the forward never names these checkpoints:", problems,
                       format("take them out of recompute_configs.checkpoints, or name them in the "
                              "model with fleet::checkpoint; it names {}",
                              listed(known)));
    }
  }

 private:
  std::vector<int64_t> shape_;
  bool proved_ = false;
};

MemoryStrategy::MemoryStrategy(const RecomputeConfigs& configs) : configs_(configs) {
  if (configs.memory_budget.empty()) {
    named_ = std::make_shared<NamedCheckpoints>(configs);
    return;
  }
  auto& allocator = memory::BudgetAllocator::cpu();
  counting_ = std::make_unique<memory::BudgetAllocatorScope>(allocator);
  memory::set_owner_source(&compat::current_op);
  const auto budget = memory::budget_bytes(configs.memory_budget);
  memory::OffloadFile::Speed disk;
  if (configs.enable_offload) {
    file_ = std::make_shared<memory::OffloadFile>();
    disk = file_->measure();
    counted_ = file_->statistics();
    log::info("offload",
              format("the disk takes {}/s and gives {}/s, for {:.0f} % of a core",
                     byte_size_text(static_cast<int64_t>(disk.write)),
                     byte_size_text(static_cast<int64_t>(disk.read)), 100 * disk.compute_share));
  }
  allocator.counter().set_budget(budget);
  plans_ = std::make_unique<memory::BudgetPlans>(budget, allocator.counter(), disk);
}

MemoryStrategy::~MemoryStrategy() {
  if (!plans_) return;
  auto& counter = memory::BudgetAllocator::cpu().counter();
  counter.set_budget(std::nullopt);
  if (charged_ > 0) counter.release(charged_, kArena);
}

int64_t MemoryStrategy::counted() const {
  return plans_ ? memory::BudgetAllocator::cpu().counter().live() : 0;
}

void MemoryStrategy::charge(int64_t bytes) {
  if (!plans_ || bytes <= 0) return;
  memory::BudgetAllocator::cpu().counter().charge(bytes, kArena);
  charged_ += bytes;
}

MemoryStrategy::Forward::Forward(MemoryStrategy* memory, int64_t samples) : memory_(memory) {
  if (!memory_) return;
  std::shared_ptr<memory::Profiler> profiler;
  if (memory_->plans_) {
    auto run = memory_->plans_->begin(samples);
    policy_ = std::move(run.policy);
    profiler = std::move(run.profiler);
  } else {
    policy_ = memory_->named_;
  }
  if (memory_->configs_.enable_offload) {
    if (!memory_->file_) memory_->file_ = std::make_shared<memory::OffloadFile>();
    offload_.emplace(memory_->file_);
    if (memory_->plans_) offload_->max_queued = 0;  // plans count on what left being gone
    offload_->waits = profiler != nullptr;
  }
  scope_.emplace(*policy_, std::move(profiler), offload_ ? &*offload_ : nullptr);
}

void MemoryStrategy::Forward::finish() {
  if (!memory_) return;
  scope_->tape().end();
  const auto tape = scope_->tape().report();
  scope_.reset();
  if (memory_->named_) memory_->named_->prove();
  if (memory_->plans_) memory_->plans_->end_forward(tape);
  memory_->add(tape);
}

void MemoryStrategy::end_backward() {
  if (plans_) plans_->end_backward();
}

bool MemoryStrategy::plan_again() { return plans_ && plans_->tighten(); }

void MemoryStrategy::add(const memory::TapeReport& tape) {
  if (!first_) first_ = tape;
  report_.segments += tape.segments;
  report_.given_up += tape.given_up;
  report_.given_up_bytes += tape.given_up_bytes;
  report_.kept_by_need += tape.kept_by_need;
  report_.kept_by_need_bytes += tape.kept_by_need_bytes;
}

MemoryReport MemoryStrategy::report_of_call(bool updated) {
  if (file_) {
    const auto now = file_->statistics();
    report_.offloaded_bytes = now.bytes_written - counted_.bytes_written;
    report_.fetched_bytes = now.bytes_read - counted_.bytes_read;
    report_.offload_stall_s = now.stall_seconds - counted_.stall_seconds;
    counted_ = now;
  }
  if (updated && !said_) say_once();
  if (updated && configs_.plan_only && plans_) {
    // After the update, where no rank waits for another.
    const auto plans = plans_->summary();
    if (!plans.empty()) throw HelpRequested(plans);
  }
  return std::exchange(report_, {});
}

void MemoryStrategy::say_once() {
  said_ = true;
  if (!first_) return;  // this rank had no samples
  auto text = format("a forward has {} segments to make again, and gave up {} values, {}",
                     first_->segments, first_->given_up, byte_size_text(first_->given_up_bytes));
  std::string by_op;
  for (const auto& [op, bytes] : first_->kept_ops) {
    by_op += format("{}{} {}", by_op.empty() ? "" : ", ", op, byte_size_text(bytes));
  }
  if (!by_op.empty()) {
    text += format("; kept, since no op can make them again: {} values, {} ({})",
                   first_->kept_by_need, byte_size_text(first_->kept_by_need_bytes), by_op);
  }
  log::info("recompute", text);
  if (!configs_.enable_offload) return;
  log::info("offload", format("the first update sent out {}, fetched {}, waited {:.3f} s for the "
                              "disk",
                              byte_size_text(report_.offloaded_bytes),
                              byte_size_text(report_.fetched_bytes), report_.offload_stall_s));
}

void MemoryStrategy::forget() {
  file_.reset();
  counted_ = {};
  report_ = {};
  if (!said_) first_.reset();
  if (plans_) plans_->forget();
}

}  // namespace fleet
