// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <torch/utils.h>

#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/planner.h"

#include "bench/benches.h"
#include "bench/memory_steps.h"

namespace fleet::bench {
namespace {

// The largest batch whose `peak` is within `room`, to 3 %; 0: not one sample. Memory grows nearly
// linearly with the batch: the next try extrapolates from the last two.
int64_t largest(int64_t first, int64_t room, const std::function<int64_t(int64_t)>& peak) {
  int64_t fits = 0, too_many = std::numeric_limits<int64_t>::max();
  const auto try_out = [&](int64_t samples) {
    const auto needed = peak(samples);
    (needed <= room ? fits : too_many) = samples;
    return needed;
  };
  int64_t last = first, next = 4 * first;
  auto last_peak = try_out(last), next_peak = try_out(next);
  while (too_many - fits > std::max<int64_t>(fits * 3 / 100, 1)) {
    const auto slope = std::max<int64_t>((next_peak - last_peak) / (next - last), 1);
    const auto guess =
        std::clamp(next + (room - next_peak) / slope, std::max<int64_t>(fits, 1), too_many - 1);
    if (fits > 0 && guess - fits <= fits * 3 / 100) break;
    last = std::exchange(next, guess);
    last_peak = std::exchange(next_peak, try_out(guess));
  }
  return fits;
}

bool is_within(const Net& net, int64_t samples, int64_t budget, const Way& way) {
  bool fits = true;
  counter().set_budget(budget);
  try {
    run(net, samples, way);
  } catch (const c10::OutOfMemoryError&) {
    fits = false;
  }
  counter().set_budget(std::nullopt);
  if (!fits) compat::flush_failed_backward();
  return fits;
}

// The largest batch in the same memory, and its samples per second.
class EqualBudget {
 public:
  EqualBudget(const Net& net, int64_t plain_samples, const Disk& disk)
      : net_(net), plain_samples_(plain_samples), disk_(disk), base_(counter().live()) {
    const auto peak = needed(plain_samples, {});
    room_ = peak + peak / 50;
    entries_.push_back({plain_samples, 1, {"plain"}});
    run(net, plain_samples, evict_on_demand());  // warms up
  }

  void find() {
    const auto named_blocks = add_named(named("every block", net_.checkpoints));
    add_named(named("sqrt(n) segments", square_root(net_.checkpoints)));
    if (named_blocks > 0) add_planned("planned, as many as every block", named_blocks);
    const auto planned = add_planned("planned", most_by_plan());
    if (planned > 0) add_planned("planned + offload, as many as planned", planned, &disk_);
    add_planned("planned + offload", most_by_plan(&disk_), &disk_);
    const auto most = entries_.back().samples;
    entries_.push_back({plain_samples_, most / plain_samples_, {"gradient merge alone"}});
  }

  void measure(std::vector<Row>& rows) {
    std::vector<std::function<void()>> steps;
    std::vector<int64_t> peaks(entries_.size(), 0);
    for (size_t i = 0; i < entries_.size(); ++i) {
      steps.push_back([&, i] { peaks[i] = run_micro_batches(entries_[i]); });
    }
    const auto timings = alternate(3, steps);
    const auto rate = [&](size_t i) {
      return static_cast<double>(entries_[i].samples * entries_[i].micro_batches) /
             timings[i].median();
    };
    for (size_t i = 0; i < entries_.size(); ++i) {
      const auto& [samples, micro_batches, way] = entries_[i];
      const auto name = format("{}, within {}, {}", net_.name, byte_size_text(budget()), way.name);
      const auto batch = static_cast<double>(samples * micro_batches);
      auto remark = format("peak {:.0f} MiB above {:.0f}", mib(peaks[i]), mib(base_));
      if (micro_batches > 1) {
        remark += format("; any batch, here {} micro-batches of {}", micro_batches, samples);
      }
      rows.push_back({name + ": largest batch", batch, "samples", "plain",
                      static_cast<double>(plain_samples_),
                      batch / static_cast<double>(plain_samples_), remark});
      rows.push_back({name + ": speed", rate(i), "samples/s", "plain", rate(0), rate(i) / rate(0),
                      timings[i].spread()});
      if (way.plan) rows.push_back(predicted_row(name, way, base_, peaks[i]));
    }
  }

 private:
  struct Entry {
    int64_t samples;
    int64_t micro_batches;
    Way way;
  };

  int64_t budget() const { return base_ + room_; }

  // Above the parameters and what belongs to them.
  int64_t needed(int64_t samples, const Way& way) const {
    const auto peak = run(net_, samples, way).peak;
    return peak + counter().live() - base_;
  }

  int64_t run_micro_batches(const Entry& entry) const {
    int64_t peak = 0;
    for (int64_t i = 0; i < entry.micro_batches; ++i) {
      peak = std::max(peak, needed(entry.samples, entry.way));
    }
    return peak;
  }

  int64_t add_named(const Way& way) {
    const auto samples = largest(plain_samples_, room_, [&](int64_t n) { return needed(n, way); });
    if (samples > 0) entries_.push_back({samples, 1, way});
    return samples;
  }

  const memory::StepProfile& profile(int64_t samples) {
    auto& known = profiles_[samples];
    if (!known) known = profile_of(net_, samples);
    return *known;
  }

  // The largest for which a plan fits.
  int64_t most_by_plan(const Disk* to = nullptr) {
    return largest(plain_samples_, room_, [&](int64_t n) {
      const memory::PlanOptions options{.disk = Disk::speed_of(to)};
      return memory::least_memory(profile(n), options).predicted_peak - base_;
    });
  }

  // `samples`, or a little less if a step shows that they do not fit.
  int64_t add_planned(const std::string& name, int64_t samples, const Disk* to = nullptr) {
    for (; samples > 0; samples -= std::max<int64_t>(samples * 2 / 100, 1)) {
      const auto way = planned(name, profile(samples), budget(), to);
      if (!way || !is_within(net_, samples, budget(), *way)) continue;
      entries_.push_back({samples, 1, *way});
      break;
    }
    return samples;
  }

  const Net& net_;
  const int64_t plain_samples_;
  const Disk& disk_;
  const int64_t base_;
  int64_t room_;  // for data and activations
  std::vector<Entry> entries_;
  std::map<int64_t, std::optional<memory::StepProfile>> profiles_;
};

}  // namespace

// The largest batch in the memory of a small one. With narrower nets, since batches are large.
std::vector<Row> bench_memory_batch() {
  const memory::BudgetAllocatorScope counting(memory::BudgetAllocator::cpu());
  torch::manual_seed(1);
  std::vector<Row> rows;
  RowPrinter printer(rows);
  const Disk disk;
  for_each_net(128, 4, [&](const Net& net, int64_t samples) {
    EqualBudget equal(net, samples, disk);
    equal.find();
    equal.measure(rows);
    printer.print_new();
  });
  return rows;
}

}  // namespace fleet::bench
