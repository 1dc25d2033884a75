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
#include "fleet/data/bert_batch.h"
#include "fleet/memory/budget_allocator.h"
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

memory::MemoryCounter& counter() { return BudgetAllocator::cpu().counter(); }

struct Net {
  std::string name;
  std::function<torch::Tensor(int64_t samples)> loss;
  std::vector<torch::Tensor> parameters;
  std::vector<std::string> checkpoints;
};

// BERT-large's 24 blocks, narrower.
Net bert(int64_t length) {
  applications::BertOptions options;
  options.vocab = 1000;
  options.hidden = 256;
  options.heads = 4;
  options.intermediate = 1024;
  options.layers = 24;
  applications::Bert model(options);
  auto batches = std::make_shared<std::map<int64_t, BertBatch>>();
  return {.name = format("BERT 24 x 256, seq {}", length),
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

Step run(const Net& net, int64_t samples, const MakePolicy& policy,
         const std::shared_ptr<memory::Profiler>& profiler = nullptr) {
  for (const auto& parameter : net.parameters) parameter.mutable_grad().zero_();
  counter().reset_peaks();
  const auto before = counter().live();
  const auto begin = std::chrono::steady_clock::now();
  {
    torch::Tensor loss;
    if (policy) {
      const auto made = policy();
      TapeScope scope(*made, profiler);
      loss = net.loss(samples);
    } else {
      loss = net.loss(samples);
    }
    loss.backward();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {.seconds = seconds, .peak = counter().peak() - before};
}

StepProfile profile_of(const Net& net, int64_t samples) {
  const auto lean = [] { return std::make_unique<memory::AutomaticCuts>(1 << 20, 2); };
  run(net, samples, lean);  // warms up
  const auto profiler = std::make_shared<memory::Profiler>(counter());
  run(net, samples, lean, profiler);
  return profiler->finish();
}

MakePolicy named(std::vector<std::string> names) {
  return [names = std::move(names)] { return std::make_unique<memory::NamedCuts>(names); };
}

MakePolicy planned(std::shared_ptr<const Plan> plan) {
  return [plan = std::move(plan)] { return std::make_unique<memory::PlannedPolicy>(plan); };
}

// Every n-th name, about sqrt(all) of them.
std::vector<std::string> square_root(const std::vector<std::string>& names) {
  const auto step = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(names.size()))));
  std::vector<std::string> few;
  for (size_t i = step - 1; i < names.size(); i += step) few.push_back(names[i]);
  return few;
}

struct Way {
  std::string name;
  MakePolicy policy;
  int64_t predicted = 0;  // above the base; 0: nobody did
};

// What memory costs in time, at one batch: each way in turn with plain.
void trade_off(const Net& net, int64_t samples, std::vector<Row>& rows) {
  const auto plain = run(net, samples, nullptr);
  const auto profile = profile_of(net, samples);
  const auto block_peak = run(net, samples, named(net.checkpoints)).peak;
  std::vector<Way> ways{
      {"tape on, everything kept", [] { return std::make_unique<memory::KeepAll>(); }},
      {"every block", named(net.checkpoints)},
      {"sqrt(n) segments", named(square_root(net.checkpoints))}};
  const auto begin = std::chrono::steady_clock::now();
  double planning = 0;
  const auto add_plan = [&](std::string name, int64_t peak) {
    auto plan = memory::make_plan(profile, {.budget = profile.base + peak});
    if (!plan) {
      log::info("bench", format("{}: no plan for {}", net.name, byte_size_text(peak)));
      return;
    }
    const auto predicted = plan->predicted_peak - profile.base;
    ways.push_back(
        {std::move(name), planned(std::make_shared<const Plan>(std::move(*plan))), predicted});
  };
  add_plan("planned, half", plain.peak / 2);
  planning = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  add_plan("planned, a quarter", plain.peak / 4);
  add_plan("planned, a ninth", plain.peak / 9);
  add_plan("planned, at every block's memory", block_peak);

  std::vector<std::function<void()>> steps{[&] { run(net, samples, nullptr); }};
  std::vector<int64_t> peaks(ways.size(), 0);
  for (size_t i = 0; i < ways.size(); ++i) {
    steps.push_back([&, i] { peaks[i] = run(net, samples, ways[i].policy).peak; });
  }
  const auto timings = alternate(5, steps);
  const double plain_s = timings[0].best();
  rows.push_back({net.name + ", plan made", planning, "s", "", 0, 0, ""});
  for (size_t i = 0; i < ways.size(); ++i) {
    const double seconds = timings[i + 1].best();
    rows.push_back(
        {net.name + ", " + ways[i].name, seconds * 1e3, "ms", "plain", plain_s * 1e3,
         plain_s / seconds,
         format("{:+.1f} % time, {:.1f}x less activation memory ({:.0f} of {:.0f} MiB){}",
                100 * (seconds / plain_s - 1),
                static_cast<double>(plain.peak) / static_cast<double>(peaks[i]),
                static_cast<double>(peaks[i]) / kMiB, static_cast<double>(plain.peak) / kMiB,
                ways[i].predicted
                    ? format(", predicted {:.0f}", static_cast<double>(ways[i].predicted) / kMiB)
                    : "")});
    if (ways[i].predicted) {
      const auto base = static_cast<double>(profile.base);
      const auto predicted = base + static_cast<double>(ways[i].predicted);
      const auto measured = base + static_cast<double>(peaks[i]);
      rows.push_back({net.name + ", " + ways[i].name + ", predicted peak", predicted / kMiB, "MiB",
                      "counted", measured / kMiB, predicted / measured, ""});
    }
  }
}

// The largest batch that a way brings through a step within the budget; 0: not one sample.
int64_t largest(const Net& net, int64_t budget, int64_t most,
                const std::function<bool(int64_t samples)>& prepare,
                const std::function<MakePolicy(int64_t samples)>& policy) {
  const auto fits = [&](int64_t samples) {
    if (!prepare(samples)) return false;
    counter().set_budget(budget);
    bool fits = true;
    try {
      run(net, samples, policy(samples));
    } catch (const c10::OutOfMemoryError&) {
      fits = false;
    }
    counter().set_budget(std::nullopt);
    if (!fits) compat::flush_failed_backward();
    return fits;
  };
  int64_t good = 0, bad = most + 1;
  for (int64_t samples = 1; samples < bad; samples *= 2) {
    if (fits(samples)) {
      good = samples;
    } else {
      bad = samples;
    }
  }
  while (bad - good > std::max<int64_t>(1, good / 16)) {
    const auto middle = (good + bad) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

// What the same memory brings: the largest batch and the samples per second with it.
void equal_budget(const Net& net, int64_t plain_samples, std::vector<Row>& rows) {
  run(net, plain_samples, nullptr);
  const auto plain = run(net, plain_samples, nullptr);
  const auto budget = counter().live() + plain.peak + plain.peak / 50;
  const int64_t most = plain_samples * 40;
  const auto always = [](int64_t) { return true; };
  struct Entry {
    std::string name;
    int64_t samples;
    MakePolicy policy;
  };
  std::vector<Entry> entries{
      {"plain; gradient merge takes any batch in such parts", plain_samples, nullptr}};
  const auto add_named = [&](const std::string& name, const MakePolicy& policy) {
    const auto samples = largest(net, budget, most, always, [&](int64_t) { return policy; });
    if (samples > 0) entries.push_back({name, samples, policy});
  };
  add_named("every block", named(net.checkpoints));
  add_named("sqrt(n) segments", named(square_root(net.checkpoints)));
  std::shared_ptr<const Plan> plan;
  const auto samples = largest(
      net, budget, most,
      [&](int64_t n) {
        // Data of the batch, and a margin for what the profile cannot know.
        const auto profile = profile_of(net, n);
        auto made = memory::make_plan(profile, {.budget = budget - budget / 100});
        plan = made ? std::make_shared<const Plan>(std::move(*made)) : nullptr;
        return plan != nullptr;
      },
      [&](int64_t) { return planned(plan); });
  if (samples > 0) {
    const auto profile = profile_of(net, samples);
    if (auto made = memory::make_plan(profile, {.budget = budget - budget / 100})) {
      entries.push_back(
          {"planned", samples, planned(std::make_shared<const Plan>(std::move(*made)))});
    }
  }
  std::vector<std::function<void()>> steps;
  std::vector<int64_t> peaks(entries.size(), 0);
  for (size_t i = 0; i < entries.size(); ++i) {
    steps.push_back([&, i] { peaks[i] = run(net, entries[i].samples, entries[i].policy).peak; });
  }
  const auto timings = alternate(2, steps);
  const auto rate = [&](size_t i) {
    return static_cast<double>(entries[i].samples) / timings[i].best();
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto name = net.name + format(", within {}, ", byte_size_text(budget)) + entries[i].name;
    rows.push_back(
        {name + ": largest micro-batch", static_cast<double>(entries[i].samples), "samples",
         "plain", static_cast<double>(entries[0].samples),
         static_cast<double>(entries[i].samples) / static_cast<double>(entries[0].samples),
         format("peak {:.0f} MiB above {:.0f}", static_cast<double>(peaks[i]) / kMiB,
                static_cast<double>(counter().live()) / kMiB)});
    rows.push_back(
        {name + ": speed", rate(i), "samples/s", "plain", rate(0), rate(i) / rate(0), ""});
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

}  // namespace

// What recompute, planned and by hand, costs and brings, counted to the byte.
std::vector<Row> bench_memory() {
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  torch::manual_seed(1);
  std::vector<Row> rows;
  per_op(rows);
  const auto take = [&](Net net, int64_t samples, int64_t plain_samples) {
    for (const auto& parameter : net.parameters) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    trade_off(net, samples, rows);
    equal_budget(net, plain_samples, rows);
  };
  take(bert(512), 4, 2);
  take(bert(128), 16, 8);
  take(resnet50(96), 16, 8);
  return rows;
}

}  // namespace fleet::bench
