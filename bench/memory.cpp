// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <torch/nn/functional/loss.h>

#include "fleet/applications/bert.h"
#include "fleet/applications/data/synthetic.h"
#include "fleet/applications/resnet.h"
#include "fleet/core/log.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/data/text/bert_batch.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/meta_profile.h"
#include "fleet/memory/tape/policies.h"

#include "bench/benches.h"

namespace fleet::bench {
namespace {

using memory::BudgetAllocator;
using memory::Plan;
using memory::StepProfile;
using memory::TapePolicy;
using memory::TapeScope;

constexpr double kMiB = 1024.0 * 1024.0;
constexpr int kRounds = 5;

memory::MemoryCounter& counter() { return BudgetAllocator::cpu().counter(); }

struct Net {
  std::string name;
  std::function<void(int64_t samples)> make_batch;  // unless it exists already
  std::function<torch::Tensor()> loss;              // of that batch
  std::vector<torch::Tensor> parameters;
  std::vector<std::string> checkpoints;
};

template <class Batch, class Model, class Make>
Net net_of(const std::string& name, Model model, Make make) {
  auto batch = std::make_shared<Batch>();
  return {.name = name,
          .make_batch =
              [=](int64_t samples) {
                if (batch->size() == samples) return;
                *batch = {};
                *batch = make(samples);
              },
          .loss = [=]() mutable { return model.loss(*batch); },
          .parameters = model->parameters(),
          .checkpoints = model->checkpoints()};
}

// BERT-large's 24 blocks, narrower.
applications::BertOptions narrow_bert(int64_t hidden) {
  applications::BertOptions options;
  options.vocab = 1000;
  options.hidden = hidden;
  options.heads = hidden / 64;
  options.intermediate = 4 * hidden;
  options.layers = 24;
  return options;
}

Net bert(const applications::BertOptions& options, int64_t length) {
  return net_of<BertBatch>(format("BERT {} x {}, seq {}", options.layers, options.hidden, length),
                           applications::Bert(options), [=](int64_t samples) {
                             return applications::synthetic_batch(options, samples, 1, length);
                           });
}

Net resnet50(int64_t side) {
  const auto model = applications::Resnet50();
  return net_of<Batch>(format("ResNet50, {} x {}", side, side), model,
                       [=, options = model.options()](int64_t samples) {
                         return applications::synthetic_batch(options, samples, 1, side);
                       });
}

struct Step {
  double seconds = 0;
  int64_t peak = 0;  // above what was live before
};

using MakePolicy = std::function<std::unique_ptr<TapePolicy>()>;

// How a step is run.
struct Way {
  std::string name;
  MakePolicy policy = nullptr;  // null: plain
  const memory::Offload* offload = nullptr;
  std::shared_ptr<const Plan> plan = nullptr;
};

Step run(const Net& net, int64_t samples, const Way& way,
         const std::shared_ptr<memory::Profiler>& profiler = nullptr) {
  for (const auto& parameter : net.parameters) parameter.mutable_grad().zero_();
  net.make_batch(samples);
  counter().reset_peaks();
  const auto before = counter().live();
  const auto begin = std::chrono::steady_clock::now();
  {
    torch::Tensor loss;
    if (way.policy) {
      const auto policy = way.policy();
      TapeScope scope(*policy, profiler, way.offload);
      loss = net.loss();
    } else {
      loss = net.loss();
    }
    loss.backward();
  }
  const double seconds = seconds_since(begin);
  return {.seconds = seconds, .peak = counter().peak() - before};
}

// As a program is run before it has a plan.
Way evict_on_demand() {
  return {.policy = [] { return std::make_unique<memory::EvictOnDemand>(); }};
}

StepProfile profile_of(const Net& net, int64_t samples) {
  const auto profiler = std::make_shared<memory::Profiler>(counter());
  run(net, samples, evict_on_demand(), profiler);
  return profiler->finish();
}

Way named(std::string way, std::vector<std::string> names) {
  return {std::move(way),
          [names = std::move(names)] { return std::make_unique<memory::NamedCuts>(names); }};
}

// A file beside, how fast it is, and whether plans may use it.
struct Disk {
  memory::Offload offload{std::make_shared<memory::OffloadFile>()};
  memory::OffloadFile::Speed speed = offload.file->measure();

  Disk() { offload.max_queued = 0; }

  // None, where there is no disk.
  static memory::OffloadFile::Speed speed_of(const Disk* disk) {
    return disk ? disk->speed : memory::OffloadFile::Speed{};
  }
};

std::optional<Way> planned(std::string name, const StepProfile& profile, int64_t budget,
                           const Disk* disk = nullptr) {
  auto made = memory::make_plan(profile, {.budget = budget, .disk = Disk::speed_of(disk)});
  if (!made) return std::nullopt;
  const auto plan = std::make_shared<const Plan>(std::move(*made));
  return Way{std::move(name), [plan] { return std::make_unique<memory::PlannedPolicy>(plan); },
             disk ? &disk->offload : nullptr, plan};
}

// Every n-th name, about sqrt(all) of them.
std::vector<std::string> square_root(const std::vector<std::string>& names) {
  const auto step = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(names.size()))));
  std::vector<std::string> few;
  for (size_t i = step - 1; i < names.size(); i += step) few.push_back(names[i]);
  return few;
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / kMiB; }

// Parameters included, as a user would count.
Row predicted_row(const std::string& name, const Way& way, int64_t base, int64_t peak) {
  const double predicted = mib(way.plan->predicted_peak), measured = mib(base + peak);
  return {name + ", predicted peak", predicted, "MiB", "counted", measured,
          predicted / measured,      ""};
}

// After a step of the same kind, as in training: its pages are cached. The faster of two, since
// other processes only make a step slower.
Step run_again(const Net& net, int64_t samples, const Way& way) {
  run(net, samples, way);
  const auto second = run(net, samples, way), third = run(net, samples, way);
  return second.seconds < third.seconds ? second : third;
}

// Two methods of about the same memory, in turn.
Row side_by_side(const Net& net, int64_t samples, const Way& way, const Way& peer) {
  Timing mine, theirs;
  for (int round = 0; round < kRounds; ++round) {
    theirs.seconds.push_back(run_again(net, samples, peer).seconds);
    mine.seconds.push_back(run_again(net, samples, way).seconds);
  }
  const Slowdown slowdown(mine, theirs);
  return {net.name + ", " + way.name + ", beside it",
          mine.median() * 1e3,
          "ms",
          peer.name,
          theirs.median() * 1e3,
          1 / slowdown.middle,
          slowdown.text()};
}

// Time for memory, at one batch size: each method between two plain steps.
void trade_off(const Net& net, int64_t samples, const Disk& disk, std::vector<Row>& rows) {
  const auto plain = run(net, samples, {});
  run(net, samples, evict_on_demand());  // warms up
  const auto profile = profile_of(net, samples);
  const auto blocks = named("every block", net.checkpoints);
  const auto block_peak = run(net, samples, blocks).peak;
  std::vector<Way> ways{{"plain"}, blocks, named("sqrt(n) segments", square_root(net.checkpoints))};
  const auto begin = std::chrono::steady_clock::now();
  double planning = 0;
  const auto add_plan = [&](const std::string& name, int64_t peak, const Disk* to = nullptr) {
    auto way = planned(name, profile, profile.base + peak, to);
    if (way) {
      ways.push_back(*way);
    } else {
      log::info("bench", format("{}, {}: no plan for {}", net.name, name, byte_size_text(peak)));
    }
    return way;
  };
  add_plan("planned, half", plain.peak / 2);
  planning = seconds_since(begin);
  add_plan("planned, a quarter", plain.peak / 4);
  add_plan("planned, a ninth", plain.peak / 9);
  const auto as_blocks = add_plan("planned, at every block's memory", block_peak);
  add_plan("planned + offload, a ninth", plain.peak / 9, &disk);
  add_plan("planned + offload, at two thirds of every block's memory", block_peak * 2 / 3, &disk);

  std::vector<Timing> timings(ways.size());
  std::vector<std::vector<double>> ratios(ways.size());
  std::vector<int64_t> peaks(ways.size(), 0);
  std::vector<double> stalls(ways.size(), 0);
  for (int round = 0; round < kRounds; ++round) {
    double before = run_again(net, samples, ways[0]).seconds;
    for (size_t i = 1; i < ways.size(); ++i) {
      const auto stalled = disk.offload.file->statistics().stall_seconds;
      const auto step = run_again(net, samples, ways[i]);
      stalls[i] += (disk.offload.file->statistics().stall_seconds - stalled) / (3 * kRounds);
      const double after = run_again(net, samples, ways[0]).seconds;
      peaks[i] = step.peak;
      timings[0].seconds.push_back(after);
      timings[i].seconds.push_back(step.seconds);
      ratios[i].push_back(2 * step.seconds / (before + after));
      before = after;
    }
  }
  const double plain_s = timings[0].median();
  rows.push_back({net.name + ", plan made", planning, "s", "", 0, 0, ""});
  for (size_t i = 1; i < ways.size(); ++i) {
    const Slowdown slowdown(ratios[i]);
    auto remark =
        format("{}, {:.1f}x less activation memory ({:.0f} of {:.0f} MiB)", slowdown.text(),
               mib(plain.peak) / mib(peaks[i]), mib(peaks[i]), mib(plain.peak));
    if (ways[i].plan) {
      const auto& plan = *ways[i].plan;
      remark +=
          format(", predicted {:+.1f} %", 100 * (plan.predicted_seconds / plan.plain_seconds - 1));
    }
    if (ways[i].offload) {
      remark += format(", {:.0f} MiB offloaded, {:.1f} ms waited for the disk",
                       mib(ways[i].plan->offloaded_bytes), 1e3 * stalls[i]);
    }
    const auto name = net.name + ", " + ways[i].name;
    rows.push_back({name, timings[i].median() * 1e3, "ms", "plain", plain_s * 1e3,
                    1 / slowdown.middle, remark});
    if (ways[i].plan) rows.push_back(predicted_row(name, ways[i], profile.base, peaks[i]));
  }
  if (as_blocks) rows.push_back(side_by_side(net, samples, *as_blocks, blocks));
}

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
      steps.push_back([&, i] { peaks[i] = run_parts(entries_[i]); });
    }
    const auto timings = alternate(3, steps);
    const auto rate = [&](size_t i) {
      return static_cast<double>(entries_[i].samples * entries_[i].parts) / timings[i].median();
    };
    for (size_t i = 0; i < entries_.size(); ++i) {
      const auto& [samples, parts, way] = entries_[i];
      const auto name = format("{}, within {}, {}", net_.name, byte_size_text(budget()), way.name);
      const auto batch = static_cast<double>(samples * parts);
      auto remark = format("peak {:.0f} MiB above {:.0f}", mib(peaks[i]), mib(base_));
      if (parts > 1) remark += format("; any batch, here {} parts of {}", parts, samples);
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
    int64_t parts;
    Way way;
  };

  int64_t budget() const { return base_ + room_; }

  // Above the parameters and what belongs to them.
  int64_t needed(int64_t samples, const Way& way) const {
    const auto peak = run(net_, samples, way).peak;
    return peak + counter().live() - base_;
  }

  int64_t run_parts(const Entry& entry) const {
    int64_t peak = 0;
    for (int64_t i = 0; i < entry.parts; ++i) {
      peak = std::max(peak, needed(entry.samples, entry.way));
    }
    return peak;
  }

  int64_t add_named(const Way& way) {
    const auto samples = largest(plain_samples_, room_, [&](int64_t n) { return needed(n, way); });
    if (samples > 0) entries_.push_back({samples, 1, way});
    return samples;
  }

  const StepProfile& profile(int64_t samples) {
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
  std::map<int64_t, std::optional<StepProfile>> profiles_;
};

// An op of 8 floats, so that the overhead shows.
void per_op(std::vector<Row>& rows) {
  const auto x = torch::randn({8}, torch::requires_grad());
  const auto y = torch::randn({8});
  constexpr int kOps = 2000;
  const auto chain = [&] {
    auto z = x;
    for (int i = 0; i < kOps; ++i) z = z * y;
    return z;
  };
  const auto timings = alternate(9, {[&] { chain(); },
                                     [&] {
                                       memory::KeepAll keep;
                                       TapeScope scope(keep);
                                       chain();
                                     }});
  const double plain = timings[0].best() / kOps * 1e6;
  const double taped = timings[1].best() / kOps * 1e6;
  rows.push_back({"mul of 8 floats, tape on", taped, "us", "plain", plain, plain / taped,
                  format("{:+.2f} us per op, everything kept", taped - plain)});
}

// Blocks of BERT-base's width, everything kept.
void tape_on_blocks(std::vector<Row>& rows) {
  applications::BertOptions options;
  options.vocab = 1000;
  options.layers = 2;
  const auto net = bert(options.resolved(), 128);
  for (const auto& parameter : net.parameters) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  const Way plain, taped{.policy = [] { return std::make_unique<memory::KeepAll>(); }};
  const auto timings = alternate(41, {[&] { run(net, 2, plain); }, [&] { run(net, 2, taped); }});
  const Slowdown slowdown(timings[1], timings[0]);
  rows.push_back({net.name + ", tape on, everything kept", timings[1].median() * 1e3, "ms", "plain",
                  timings[0].median() * 1e3, 1 / slowdown.middle, slowdown.text()});
}

// How long it takes to find a plan, offload included.
void planning(std::vector<Row>& rows) {
  const memory::BudgetAllocatorScope counting(BudgetAllocator::meta());
  auto model = applications::Resnet152({.device = torch::kMeta});
  const auto profile = memory::profile_on_meta(
      [&] { return model.loss(applications::synthetic_batch(model.options(), 32, 1, 224)); },
      memory::MachineRates{.flops = 1e11, .bytes = 1e10});
  const auto peak = memory::keep_everything(profile).predicted_peak - profile.base;
  const auto timings = alternate(
      3, {[&] { memory::make_plan(profile, {.budget = profile.base + peak / 4}); },
          [&] {
            memory::make_plan(
                profile, {.budget = profile.base + peak / 4, .disk = {.write = 1e9, .read = 1e9}});
          }});
  rows.push_back({format("ResNet-152, {} ops, plan made", profile.ops.size()), timings[0].best(),
                  "s", "", 0, 0, ""});
  rows.push_back({"ResNet-152, plan with offload made", timings[1].best(), "s", "", 0, 0, ""});
}

// It takes some minutes: rows are printed as they come.
class RowPrinter {
 public:
  explicit RowPrinter(const std::vector<Row>& rows) : rows_(rows) {}
  void print_new() {
    for (; printed_ < rows_.size(); ++printed_) {
      const auto& row = rows_[printed_];
      log::info("bench", format("{}: {:.6g} {} {}", row.name, row.value, row.unit, row.note));
    }
  }

 private:
  const std::vector<Row>& rows_;
  size_t printed_ = 0;
};

// Each net with its gradients, and a batch that is small for it.
void for_each_net(int64_t hidden, int64_t images,
                  const std::function<void(const Net& net, int64_t samples)>& work) {
  const auto take = [&](const Net& net, int64_t samples) {
    for (const auto& parameter : net.parameters) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    work(net, samples);
  };
  take(bert(narrow_bert(hidden), 512), 1);
  take(bert(narrow_bert(hidden), 128), 4);
  take(resnet50(96), images);
}

}  // namespace

// Time and memory of recompute, planned and by hand.
std::vector<Row> bench_memory() {
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  torch::manual_seed(1);
  std::vector<Row> rows;
  RowPrinter printer(rows);
  planning(rows);
  const Disk disk;
  rows.push_back({"disk, out", disk.speed.write / kMiB, "MiB/s", "", 0, 0, ""});
  rows.push_back({"disk, back", disk.speed.read / kMiB, "MiB/s", "", 0, 0, ""});
  rows.push_back({"disk, of a core", 100 * disk.speed.compute_slowdown, "%", "", 0, 0, ""});
  printer.print_new();
  for_each_net(512, 8, [&](const Net& net, int64_t samples) {
    trade_off(net, samples, disk, rows);
    printer.print_new();
  });
  return rows;
}

// The cost of recording alone.
std::vector<Row> bench_tape() {
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  torch::manual_seed(1);
  std::vector<Row> rows;
  per_op(rows);
  tape_on_blocks(rows);
  return rows;
}

// The largest batch in the memory of a small one. With narrower nets, since batches are large.
std::vector<Row> bench_memory_batch() {
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
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
