// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <utility>

#include <torch/utils.h>

#include "fleet/applications/data/synthetic.h"
#include "fleet/applications/resnet.h"
#include "fleet/core/log.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/meta_profile.h"

#include "bench/benches.h"
#include "bench/memory_steps.h"

namespace fleet::bench {
namespace {

constexpr int kRounds = 5;

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

// How long it takes to find a plan, offload included.
void planning(std::vector<Row>& rows) {
  const memory::BudgetAllocatorScope counting(memory::BudgetAllocator::meta());
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

}  // namespace

// Time and memory of recompute, planned and by hand.
std::vector<Row> bench_memory() {
  const memory::BudgetAllocatorScope counting(memory::BudgetAllocator::cpu());
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

}  // namespace fleet::bench
