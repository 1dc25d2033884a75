// SPDX-License-Identifier: Apache-2.0
// Nets of the shapes that people train, within a half, a quarter and an eighth of their
// activations: what a step takes, beside plain steps of the same batch. FLEET_BENCH_NETS=gpt,unet
// leaves out all others; with FLEET_BENCH_DETAIL=1 a line for every step says what of it is
// replays.
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include <c10/util/StringUtil.h>

#include "fleet/core/log.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/replay/replay.h"
#include "fleet/train/memory_budget.h"

#include "bench/benches.h"
#include "bench/zoo/zoo.h"

namespace fleet::bench {
namespace {

using memory::BudgetAllocator;

constexpr double kMiB = 1024.0 * 1024.0;
constexpr int kRounds = 7;

memory::MemoryCounter& counter() { return BudgetAllocator::cpu().counter(); }
double mib(int64_t bytes) { return static_cast<double>(bytes) / kMiB; }

struct Step {
  double seconds = 0;
  int64_t peak = 0;  // above what was live before
  memory::ReplayTotals replays;
  int64_t faults = 0;  // of pages, without reads
};

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

class Program {
 public:
  explicit Program(const zoo::Entry& entry) : entry_(entry), net_(zoo::make_net(entry.name)) {
    for (const auto& parameter : net_->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    live_ = counter().live();
  }

  const zoo::Entry& entry() const { return entry_; }
  int64_t live() const { return live_; }  // parameters and gradients

  Step plain(int64_t update) {
    return measured([&] { net_->loss(update).backward(); });
  }

  Step budgeted(int64_t update, MemoryBudget& budget) {
    return measured([&] { budget.step([&] { return net_->loss(update); }); });
  }

 private:
  template <class Work>
  Step measured(const Work& work) {
    for (const auto& parameter : net_->parameters()) parameter.mutable_grad().zero_();
    torch::manual_seed(7);
    counter().reset_peaks();
    const auto faults = page_faults();
    const auto replays = memory::replay_totals();
    const auto begin = std::chrono::steady_clock::now();
    work();
    Step step{.seconds = seconds_since(begin), .peak = counter().peak() - live_};
    step.faults = page_faults() - faults;
    step.replays = memory::replay_totals();
    step.replays.recomputations -= replays.recomputations;
    step.replays.ops -= replays.ops;
    step.replays.stopped_early -= replays.stopped_early;
    step.replays.seconds -= replays.seconds;
    return step;
  }

  const zoo::Entry& entry_;
  std::shared_ptr<zoo::Net> net_;
  int64_t live_ = 0;
};

struct Share {
  const char* name;
  int64_t part;
};
constexpr Share kShares[] = {{"half", 2}, {"a quarter", 4}, {"an eighth", 8}};

// One share of one net: its first steps, and its steps beside plain ones.
class ShareOfNet {
 public:
  ShareOfNet(Program& program, const Share& share, int64_t plain_peak)
      : program_(program),
        share_(share),
        plain_peak_(plain_peak),
        budget_({.budget = std::to_string(program.live() + plain_peak / share.part)}) {}

  // False: nothing fits, and `why` is the reason.
  bool start() {
    try {
      for (int64_t update = 0; update < 3; ++update) {
        const double plain = program_.plain(update).seconds;
        first_.push_back(program_.budgeted(update, budget_).seconds / plain);
      }
      // A program that changes is measured a few times, and then no longer planned.
      for (int64_t update = 3; program_.entry().changes && update < 8; ++update) {
        program_.budgeted(update, budget_);
      }
      return true;
    } catch (const std::exception& error) {
      why_ = error.what();
      return false;
    }
  }

  void round(int64_t update) {
    program_.budgeted(update, budget_);
    const auto first = program_.budgeted(update, budget_),
               second = program_.budgeted(update, budget_);
    const auto plain = best_plain(update);
    const double before = plain.seconds;
    if (std::getenv("FLEET_BENCH_DETAIL")) say_detail(plain, {first, second});
    peak_ = std::max({peak_, first.peak, second.peak});
    seconds_.seconds.push_back(std::min(first.seconds, second.seconds));
    plain_.seconds.push_back(before);
    ratios_.push_back(seconds_.seconds.back() / before);
  }

  Row result() const {
    const auto name = format("{}, {}", program_.entry().name, share_.name);
    if (!why_.empty()) {
      return {name, mib(plain_peak_ / share_.part),      "MiB", "plain", mib(plain_peak_),
              0,    why_.substr(0, why_.find("\n  fix"))};
    }
    const Slowdown slowdown(ratios_);
    const auto plan = budget_.plan();
    auto note = format("{}; {:.1f} of {:.1f} MiB; {}", slowdown.text(), mib(peak_),
                       mib(plain_peak_), plan ? plan->describe() : "evicted on demand");
    if (plan) {
      note += format("; predicted {:+.1f} %",
                     100 * (plan->predicted_seconds / plan->plain_seconds - 1));
    }
    note += format("; first steps {:.2f}x, {:.2f}x, {:.2f}x", first_[0], first_[1], first_[2]);
    return {name,    seconds_.median() * 1e3, "ms",
            "plain", plain_.median() * 1e3,   1 / slowdown.middle,
            note};
  }

 private:
  Step best_plain(int64_t update) {
    program_.plain(update);
    const auto first = program_.plain(update), second = program_.plain(update);
    return first.seconds < second.seconds ? first : second;
  }

  void say_detail(const Step& plain, const std::vector<Step>& steps) const {
    const auto plan = budget_.plan();
    for (const auto& step : steps) {
      auto text = format(
          "{}, {}: {:.2f} ms, {} page faults; plain {:.2f} ms, {} faults; replayed {} ops ({} "
          "ended early) in {} "
          "recomputations, {:.2f} ms",
          program_.entry().name, share_.name, 1e3 * step.seconds, step.faults, 1e3 * plain.seconds,
          plain.faults, step.replays.ops, step.replays.stopped_early, step.replays.recomputations,
          1e3 * step.replays.seconds);
      if (plan) {
        text += format(" (predicted {:.2f} ms, beside {:.2f} ms of plain training)",
                       1e3 * (plan->predicted_seconds - plan->plain_seconds),
                       1e3 * plan->plain_seconds);
      }
      log::info("bench", text);
    }
  }

  Program& program_;
  const Share& share_;
  int64_t plain_peak_;
  MemoryBudget budget_;
  std::vector<double> first_, ratios_;
  Timing seconds_, plain_;
  int64_t peak_ = 0;
  std::string why_;
};

}  // namespace

std::vector<Row> bench_any_model() {
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  std::vector<Row> rows;
  const char* only = std::getenv("FLEET_BENCH_NETS");
  for (const auto& entry : zoo::entries()) {
    if (only &&
        c10::str(',', only, ',').find(c10::str(',', entry.name, ',')) == std::string::npos) {
      continue;
    }
    torch::manual_seed(1);
    Program program(entry);
    program.plain(0);
    int64_t peak = program.plain(0).peak;
    // The batches of a program that changes are of different sizes: the largest counts.
    for (int64_t update = 1; entry.changes && update < 8 + kRounds; ++update) {
      peak = std::max(peak, program.plain(update).peak);
    }
    for (const auto& share : kShares) {
      ShareOfNet row(program, share, peak);
      if (row.start()) {
        for (int round = 0; round < kRounds; ++round) row.round(entry.changes ? 8 + round : 0);
      }
      rows.push_back(row.result());
      log::info("bench", format("{}: {:.6g} {} {}", rows.back().name, rows.back().value,
                                rows.back().unit, rows.back().note));
    }
  }
  return rows;
}

}  // namespace fleet::bench
