#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include <torch/nn/functional/loss.h>

#include "fleet/applications/bert.h"
#include "fleet/applications/resnet.h"
#include "fleet/applications/synthetic.h"
#include "fleet/core/byte_size.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/seconds_since.h"
#include "fleet/data/bert_batch.h"
#include "fleet/memory/budget_allocator.h"
#include "fleet/memory/meta_profile.h"
#include "fleet/memory/planner.h"
#include "fleet/memory/policies.h"

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
  std::function<torch::Tensor(int64_t samples)> loss;
  std::vector<torch::Tensor> parameters;
  std::vector<std::string> checkpoints;
};

// BERT-large's 24 blocks, narrower.
applications::BertOptions narrow_bert() {
  applications::BertOptions options;
  options.vocab = 1000;
  options.hidden = 256;
  options.heads = 4;
  options.intermediate = 1024;
  options.layers = 24;
  return options;
}

Net bert(const applications::BertOptions& options, int64_t length) {
  applications::Bert model(options);
  auto batches = std::make_shared<std::map<int64_t, BertBatch>>();
  return {.name = format("BERT {} x {}, seq {}", options.layers, options.hidden, length),
          .loss =
              [=](int64_t samples) mutable {
                auto& batch = (*batches)[samples];
                if (batch.size() == 0) {
                  batch = applications::synthetic_batch(options, samples, 1, length);
                }
                return model.loss(batch);
              },
          .parameters = model->parameters(),
          .checkpoints = model->checkpoints()};
}

Net resnet50(int64_t side) {
  auto model = applications::Resnet50();
  auto batches = std::make_shared<std::map<int64_t, Batch>>();
  return {.name = format("ResNet50, {} x {}", side, side),
          .loss =
              [=](int64_t samples) mutable {
                auto& batch = (*batches)[samples];
                if (batch.size() == 0) {
                  batch = applications::synthetic_batch(model.options(), samples, 1, side);
                }
                return model.loss(batch);
              },
          .parameters = model->parameters(),
          .checkpoints = model->checkpoints()};
}

struct Step {
  double seconds = 0;
  int64_t peak = 0;  // above what was there before
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
  counter().reset_peaks();
  const auto before = counter().live();
  const auto begin = std::chrono::steady_clock::now();
  {
    torch::Tensor loss;
    if (way.policy) {
      const auto policy = way.policy();
      TapeScope scope(*policy, profiler, way.offload);
      loss = net.loss(samples);
    } else {
      loss = net.loss(samples);
    }
    loss.backward();
  }
  const double seconds = seconds_since(begin);
  return {.seconds = seconds, .peak = counter().peak() - before};
}

StepProfile profile_of(const Net& net, int64_t samples) {
  const auto tied = std::make_shared<memory::TiedOps>();
  const Way lean{
      .policy = [=] { return std::make_unique<memory::AutomaticCuts>(1 << 20, 2, tied); }};
  run(net, samples, lean);  // warms up
  const auto profiler = std::make_shared<memory::Profiler>(counter());
  run(net, samples, lean, profiler);
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
};

std::optional<Way> planned(std::string name, const StepProfile& profile, int64_t budget,
                           const Disk* disk = nullptr) {
  auto made = memory::make_plan(
      profile, {.budget = budget, .disk = disk ? disk->speed : memory::OffloadFile::Speed{}});
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

// With parameters and all, as a user would count.
Row predicted_row(const std::string& name, const Way& way, int64_t base, int64_t peak) {
  const double predicted = mib(way.plan->predicted_peak), measured = mib(base + peak);
  return {name + ", predicted peak", predicted, "MiB", "counted", measured,
          predicted / measured,      ""};
}

// The second of two steps: in training, the step before was of the same kind, and its memory is at
// hand.
Step run_again(const Net& net, int64_t samples, const Way& way) {
  run(net, samples, way);
  return run(net, samples, way);
}

// What memory costs in time, at one batch: each way between two plain ones.
void trade_off(const Net& net, int64_t samples, const Disk& disk, std::vector<Row>& rows) {
  const auto plain = run(net, samples, {});
  const auto profile = profile_of(net, samples);
  const auto blocks = named("every block", net.checkpoints);
  const auto block_peak = run(net, samples, blocks).peak;
  std::vector<Way> ways{{"plain"}, blocks, named("sqrt(n) segments", square_root(net.checkpoints))};
  const auto begin = std::chrono::steady_clock::now();
  double planning = 0;
  const auto add_plan = [&](const std::string& name, int64_t peak, const Disk* to = nullptr) {
    if (const auto way = planned(name, profile, profile.base + peak, to)) {
      ways.push_back(*way);
    } else {
      log::info("bench", format("{}, {}: no plan for {}", net.name, name, byte_size_text(peak)));
    }
  };
  add_plan("planned, half", plain.peak / 2);
  planning = seconds_since(begin);
  add_plan("planned, a quarter", plain.peak / 4);
  add_plan("planned, a ninth", plain.peak / 9);
  add_plan("planned, at every block's memory", block_peak);
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
      stalls[i] += (disk.offload.file->statistics().stall_seconds - stalled) / (2 * kRounds);
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
          format(", foreseen {:+.1f} %", 100 * (plan.predicted_seconds / plan.plain_seconds - 1));
    }
    if (ways[i].offload) {
      remark += format(", {:.0f} MiB sent out, {:.1f} ms waited for the disk",
                       mib(ways[i].plan->sent_out_bytes), 1e3 * stalls[i]);
    }
    const auto name = net.name + ", " + ways[i].name;
    rows.push_back({name, timings[i].median() * 1e3, "ms", "plain", plain_s * 1e3,
                    1 / slowdown.middle, remark});
    if (ways[i].plan) rows.push_back(predicted_row(name, ways[i], profile.base, peaks[i]));
  }
}

// The largest batch, to 3 %, that a way brings through a step within the budget; 0: not one sample.
// Memory grows evenly with the batch, or nearly so: `peak` of two batches tells where to look.
int64_t largest(int64_t first, int64_t room, const std::function<int64_t(int64_t)>& peak,
                const std::function<bool(int64_t)>& fits) {
  const auto one = peak(first), two = peak(2 * first);
  const auto slope = std::max<int64_t>((two - one) / first, 1);
  auto samples = std::max<int64_t>(first + (room - one) / slope, 1);
  while (samples > 0 && !fits(samples)) samples -= std::max<int64_t>(samples * 3 / 100, 1);
  return samples;
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

// What the same memory brings: the largest batch and the samples per second with it.
void equal_budget(const Net& net, int64_t plain_samples, const Disk& disk, std::vector<Row>& rows) {
  run(net, plain_samples, {});
  const auto plain = run(net, plain_samples, {});
  const auto base = counter().live();
  const auto room = plain.peak + plain.peak / 50;
  const auto budget = base + room;
  struct Entry {
    int64_t samples;
    Way way;
  };
  std::vector<Entry> entries{
      {plain_samples, {"plain; gradient merge takes any batch in such parts"}}};
  const auto add_named = [&](const Way& way) {
    const auto samples = largest(
        plain_samples, room, [&](int64_t n) { return run(net, n, way).peak; },
        [&](int64_t n) { return is_within(net, n, budget, way); });
    if (samples > 0) entries.push_back({samples, way});
  };
  add_named(named("every block", net.checkpoints));
  add_named(named("sqrt(n) segments", square_root(net.checkpoints)));
  const auto add_planned = [&](const std::string& name, const Disk* to) {
    const memory::PlanOptions options{.disk = to ? to->speed : memory::OffloadFile::Speed{}};
    std::optional<Way> best;
    const auto samples = largest(
        plain_samples, room,
        [&](int64_t n) {
          const auto profile = profile_of(net, n);
          return memory::least_memory(profile, options).predicted_peak - profile.base;
        },
        [&](int64_t n) {
          // With a margin for what the profile cannot know.
          auto way = planned(name, profile_of(net, n), budget - budget / 100, to);
          if (!way || !is_within(net, n, budget, *way)) return false;
          best = std::move(way);
          return true;
        });
    if (samples > 0) entries.push_back({samples, *best});
  };
  add_planned("planned", nullptr);
  add_planned("planned + offload", &disk);

  std::vector<std::function<void()>> steps;
  std::vector<int64_t> peaks(entries.size(), 0);
  for (size_t i = 0; i < entries.size(); ++i) {
    steps.push_back([&, i] { peaks[i] = run(net, entries[i].samples, entries[i].way).peak; });
  }
  const auto timings = alternate(3, steps);
  const auto rate = [&](size_t i) {
    return static_cast<double>(entries[i].samples) / timings[i].median();
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& [samples, way] = entries[i];
    const auto name = net.name + format(", within {}, ", byte_size_text(budget)) + way.name;
    rows.push_back({name + ": largest micro-batch", static_cast<double>(samples), "samples",
                    "plain", static_cast<double>(plain_samples),
                    static_cast<double>(samples) / static_cast<double>(plain_samples),
                    format("peak {:.0f} MiB above {:.0f}", mib(peaks[i]), mib(base))});
    rows.push_back(
        {name + ": speed", rate(i), "samples/s", "plain", rate(0), rate(i) / rate(0), ""});
    if (way.plan) rows.push_back(predicted_row(name, way, base, peaks[i]));
  }
}

// An op of 8 floats, so that what comes on top of it shows.
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
  const auto net = bert(options, 128);
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
  auto model = applications::Resnet152(torch::kMeta);
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

// It takes some minutes: rows are said as they come.
class Said {
 public:
  explicit Said(const std::vector<Row>& rows) : rows_(rows) {}
  void say() {
    for (; said_ < rows_.size(); ++said_) {
      const auto& row = rows_[said_];
      log::info("bench", format("{}: {:.6g} {} {}", row.name, row.value, row.unit, row.note));
    }
  }

 private:
  const std::vector<Row>& rows_;
  size_t said_ = 0;
};

// Each net with its gradients, and a batch that is small for it.
void for_each_net(const std::function<void(const Net& net, int64_t samples)>& work) {
  const auto take = [&](const Net& net, int64_t samples) {
    for (const auto& parameter : net.parameters) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    work(net, samples);
  };
  take(bert(narrow_bert(), 512), 1);
  take(bert(narrow_bert(), 128), 4);
  take(resnet50(96), 4);
}

}  // namespace

// What recompute, planned and by hand, costs, counted to the byte.
std::vector<Row> bench_memory() {
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  torch::manual_seed(1);
  std::vector<Row> rows;
  Said said(rows);
  per_op(rows);
  tape_on_blocks(rows);
  planning(rows);
  const Disk disk;
  rows.push_back({"disk, out", disk.speed.write / kMiB, "MiB/s", "", 0, 0, ""});
  rows.push_back({"disk, back", disk.speed.read / kMiB, "MiB/s", "", 0, 0, ""});
  for_each_net([&](const Net& net, int64_t samples) {
    trade_off(net, 2 * samples, disk, rows);
    said.say();
  });
  return rows;
}

// What it brings: the largest batch in the memory of a small one.
std::vector<Row> bench_memory_batch() {
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  torch::manual_seed(1);
  std::vector<Row> rows;
  Said said(rows);
  const Disk disk;
  for_each_net([&](const Net& net, int64_t samples) {
    equal_budget(net, samples, disk, rows);
    said.say();
  });
  return rows;
}

}  // namespace fleet::bench
