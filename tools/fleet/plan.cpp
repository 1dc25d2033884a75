// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <optional>

#include "fleet/applications/applications.h"
#include "fleet/core/error.h"
#include "fleet/core/options/command_line.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"
#include "fleet/io/atomic_file.h"
#include "fleet/io/output_check.h"
#include "fleet/memory/plan/plan_picture.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/meta_profile.h"
#include "fleet/memory/plan/simulation/plan_simulation.h"

#include "tools/fleet/commands.h"
#include "tools/fleet/plan_model.h"

namespace fleet::tool {
namespace {

using memory::Plan;

constexpr double kGiga = 1e9;
// Of the V100 that the guide has, by its data sheet.
constexpr double kV100Gflops = 15700, kV100Bandwidth = 900;
// Of PCI Express 3 with 16 lanes, as those cards have it: 15.75 GB/s, less what frames take.
constexpr double kPcieBandwidth = 12;

struct PlanCommandOptions {
  std::string model = "bert-large";
  int64_t seq = 512;
  int64_t image = 224;
  int64_t batch = 0;
  std::string budget = "32GiB";
  bool amp = false;
  double gflops = kV100Gflops;
  double bandwidth = kV100Bandwidth;
  double offload_speed = kPcieBandwidth;
  std::string svg;
  std::string json;
  bool guide = false;
};

const FieldList& fields_of(const PlanCommandOptions*) {
  using P = PlanCommandOptions;
  static const FieldList list{
      .area = "plan",
      .fields = {
          field<&P::model>("model", "model to plan for").one_of(plan_model_names()),
          field<&P::seq>("seq",
                         "length of a sample of text; a Transformer's source and target each")
              .at_least(8)
              .at_most(1 << 17)
              .in_unit("tokens"),
          field<&P::image>("image", "side of an image")
              .at_least(32)
              .at_most(1 << 14)
              .in_unit("pixels"),
          field<&P::batch>("batch", "batch to check: whether it fits, and by which plan; 0: none")
              .at_least(0)
              .in_unit("samples"),
          field<&P::budget>("budget", "memory for all tensors, parameters included"),
          field<&P::amp>("amp", "parameters and activations in bf16, with fp32 masters"),
          field<&P::gflops>("gflops", "compute rate, for the times; default: a V100 in fp32")
              .above(0)
              .in_unit("GFLOP/s"),
          field<&P::bandwidth>("bandwidth", "memory bandwidth, for the times; default: a V100")
              .above(0)
              .in_unit("GB/s"),
          field<&P::offload_speed>(
              "offload_speed", "speed of offload and prefetch, each way; default: PCIe of a V100")
              .above(0)
              .in_unit("GB/s"),
          field<&P::svg>("svg", "draw memory over time, and time over memory, into this file"),
          field<&P::json>("json", "write the numbers into this file"),
          field<&P::guide>("guide", "BERT-large on 32 GB beside the numbers of the guide"),
      }};
  return list;
}

void write(const std::string& path, const std::string& text) {
  write_file_atomically(path, text, "plan");
  std::printf("wrote %s\n", printable(path).c_str());
}

void print(const std::string& line) { std::printf("%s\n", line.c_str()); }

std::string added_time(double seconds, double plain) {
  return format("{:+.1f} %", 100 * (seconds / plain - 1));
}

// Four digits at least: the added time follows from what is printed.
std::string milliseconds(double seconds) {
  return format("{:.{}f} ms", 1e3 * seconds, seconds < 0.01 ? 4 : 2);
}

PlanModelOptions model_options(const PlanCommandOptions& options) {
  return {.name = options.model,
          .seq = options.seq,
          .image = options.image,
          .is_bf16 = options.amp,
          .rates = {.flops = options.gflops * kGiga, .bytes = options.bandwidth * kGiga},
          .offload = {.write = options.offload_speed * kGiga,
                      .read = options.offload_speed * kGiga,
                      .compute_slowdown =
                          options.offload_speed / options.bandwidth}};  // of memory's bandwidth
}

std::string sample_of(const PlanCommandOptions& options) {
  return sample_text(options.model, options.seq, options.image);
}

struct Asked {
  std::optional<RecomputeMode> mode;  // the quickest that fits
  std::shared_ptr<const Plan> plan;
};

// Plain where that fits, since nothing is quicker. Nothing is asked beyond the largest batch of
// all: shapes of any size cannot even be counted.
Asked ask(PlanModel& model, int64_t batch, int64_t largest, int64_t budget) {
  if (batch > largest) return {};
  for (const auto mode :
       {RecomputeMode::kPlain, RecomputeMode::kPlanned, RecomputeMode::kPlannedWithOffload}) {
    if (auto plan = plan_within(model, mode, batch, budget)) return {mode, plan};
  }
  return {};
}

void draw(PlanModel& model, const PlanCommandOptions& options, int64_t batch, int64_t budget,
          const Plan& planned) {
  const auto& profile = model.profile(batch);
  const memory::PlanSimulation simulation(profile, model.offload());
  memory::PlanPicture picture{
      .title = format("{}, {}, batch {}: one step{}", options.model, sample_of(options), batch,
                      options.amp ? " in bf16" : ""),
      .budget = budget};
  const auto everything = memory::keep_everything(profile);
  const auto blocks = memory::recompute_between_checkpoints(profile);
  const std::pair<RecomputeMode, const Plan*> plans[] = {{RecomputeMode::kPlain, &everything},
                                                         {RecomputeMode::kEveryBlock, &blocks},
                                                         {RecomputeMode::kPlanned, &planned}};
  for (const auto& [mode, plan] : plans) {
    auto prediction = simulation.predict(*plan);
    picture.lines.push_back({std::string(name_of(mode)), std::move(prediction.forward),
                             std::move(prediction.backward)});
  }
  picture.curve = memory::time_over_memory(profile);
  write(options.svg, picture.svg());
}

void plan_model(const PlanCommandOptions& options, int64_t budget) {
  PlanModel model(model_options(options));
  print(format("{}, {}, {} within {}", options.model, sample_of(options),
               options.amp ? "bf16" : "fp32", byte_size_text(budget)));
  print(format("{:.1f} million parameters; {} for them, their gradients and Adam's state",
               static_cast<double>(model.parameters()) / 1e6, byte_size_text(model.fixed_bytes())));
  if (options.amp) {
    print(
        "bf16 throughout, with fp32 masters and gradients; autocast keeps some values in fp32 and "
        "takes more");
  }
  print(
      format("times by a model: {:.0f} GFLOP/s or {:.0f} GB/s, whichever is slower for an op, "
             "backward twice forward; offload {:.0f} GB/s each way",
             options.gflops, options.bandwidth, options.offload_speed));
  print(format("\n{:<24}{:>8}{:>14}{:>16}{:>22}{:>10}", "", "batch", "peak", "time/sample",
               "plain, if it fitted", "added"));
  std::string json;
  const auto row = [&](const std::string& name, const LargestBatch& batch) {
    if (batch.samples == 0) return print(format("{:<24}{:>8}", name, "none"));
    const double seconds = batch.seconds_per_sample();
    const double kept = batch.plan->plain_seconds / static_cast<double>(batch.samples);
    print(format("{:<24}{:>8}{:>14}{:>16}{:>22}{:>10}", name, batch.samples,
                 byte_size_text(batch.plan->predicted_peak), milliseconds(seconds),
                 milliseconds(kept), added_time(seconds, kept)));
    json += format(
        "{}\n    {{\"mode\": \"{}\", \"batch\": {}, \"peak_bytes\": {}, "
        "\"seconds_per_sample\": {:.6g}, \"plain_seconds_per_sample\": {:.6g}}}",
        json.empty() ? "" : ",", name, batch.samples, batch.plan->predicted_peak, seconds, kept);
  };
  const auto plain = largest_batch(model, RecomputeMode::kPlain, budget);
  const bool has_blocks = model.has_checkpoints();
  const auto blocks =
      has_blocks ? largest_batch(model, RecomputeMode::kEveryBlock, budget) : LargestBatch();
  const auto planned = largest_batch(model, RecomputeMode::kPlanned, budget);
  const auto offloaded = largest_batch(model, RecomputeMode::kPlannedWithOffload, budget);
  row("plain, largest", plain);
  if (has_blocks) row("every block, largest", blocks);
  if (blocks.samples > 0) {
    if (auto plan = plan_within(model, RecomputeMode::kPlanned, blocks.samples, budget)) {
      row("planned, as many", {blocks.samples, std::move(plan)});
    }
  }
  row("planned, largest", planned);
  if (planned.samples > 0) {
    if (auto plan =
            plan_within(model, RecomputeMode::kPlannedWithOffload, planned.samples, budget)) {
      row("with offload, as many", {planned.samples, std::move(plan)});
    }
  }
  row("with offload, largest", offloaded);
  if (offloaded.samples == 0) {
    throw UsageError("plan",
                     format("not one sample fits into {}, whatever is recomputed or offloaded",
                            byte_size_text(budget)),
                     "give a larger --budget, or smaller samples (--seq, --image)");
  }
  std::string asked_json;
  auto drawn = planned.samples > 0 ? planned : offloaded;
  if (options.batch > 0) {
    const auto largest =
        std::max({plain.samples, blocks.samples, planned.samples, offloaded.samples});
    const auto asked = ask(model, options.batch, largest, budget);
    if (asked.plan) {
      drawn = {options.batch, asked.plan};
      print(format("\nbatch {} fits {}: {}, {} at the peak, {:.3f} s a step ({} against plain)",
                   options.batch,
                   asked.mode == RecomputeMode::kPlain     ? "as it is"
                   : asked.mode == RecomputeMode::kPlanned ? "by a plan"
                                                           : "by a plan with offload",
                   asked.plan->describe(), byte_size_text(asked.plan->predicted_peak),
                   asked.plan->predicted_seconds,
                   added_time(asked.plan->predicted_seconds, asked.plan->plain_seconds)));
      asked_json = format(
          ",\n  \"asked\": {{\"batch\": {}, \"fits\": true, \"mode\": \"{}\", \"peak_bytes\": {}, "
          "\"seconds\": {:.6g}}}",
          options.batch, name_of(*asked.mode), asked.plan->predicted_peak,
          asked.plan->predicted_seconds);
    } else {
      const auto micro_batches = (options.batch + offloaded.samples - 1) / offloaded.samples;
      print(format(
          "\nbatch {} does not fit at once; gradient_merge takes it in {} micro-batches of "
          "up to {} samples",
          options.batch, micro_batches, (options.batch + micro_batches - 1) / micro_batches));
      asked_json =
          format(",\n  \"asked\": {{\"batch\": {}, \"fits\": false, \"micro_batches\": {}}}",
                 options.batch, micro_batches);
    }
  }
  if (!options.json.empty()) {
    write(options.json,
          format("{{\n  \"model\": \"{}\", \"sample\": \"{}\", \"dtype\": \"{}\", "
                 "\"budget_bytes\": {},\n  \"parameters\": {}, \"fixed_bytes\": {}, "
                 "\"gflops\": {:.6g}, \"bandwidth_gb_s\": {:.6g},\n  \"modes\": [{}\n  ]{}\n}}\n",
                 options.model, sample_of(options), options.amp ? "bf16" : "fp32", budget,
                 model.parameters(), model.fixed_bytes(), options.gflops, options.bandwidth, json,
                 asked_json));
  }
  if (!options.svg.empty()) draw(model, options, drawn.samples, budget, *drawn.plan);
}

// The guide does not name its cards: its batches and its speeds are those of V100s with 32 GB.
void compare_with_guide(PlanCommandOptions options) {
  options.model = "bert-large";
  constexpr int64_t kBudget = int64_t{32} << 30;
  struct Column {
    LargestBatch plain, blocks, planned, offloaded;
  } columns[2];
  for (const bool amp : {false, true}) {
    options.amp = amp;
    PlanModel model(model_options(options));
    auto& column = columns[amp ? 1 : 0];
    column = {largest_batch(model, RecomputeMode::kPlain, kBudget),
              largest_batch(model, RecomputeMode::kEveryBlock, kBudget),
              largest_batch(model, RecomputeMode::kPlanned, kBudget),
              largest_batch(model, RecomputeMode::kPlannedWithOffload, kBudget)};
  }
  const auto speed = [](const LargestBatch& mode) {
    return format("{} ({:.2f})", mode.samples,
                  mode.plan->plain_seconds / mode.plan->predicted_seconds);
  };
  print(format("BERT-large on one card of 32 GiB: largest batch (speed against plain)"));
  print(format("{:<46}{:>10}{:>14}{:>18}", "", "plain", "recompute", "recompute + amp"));
  print(format("{:<46}{:>10}{:>14}{:>18}", "guide, first table", "14", "53 (0.71)", "87 (1.05)"));
  print(
      format("{:<46}{:>10}{:>14}{:>18}", "guide, second table", "14", "130 (0.65)", "145 (1.08)"));
  const auto row = [&](const std::string& name, const LargestBatch& fp32,
                       const LargestBatch& bf16) {
    print(format("{:<46}{:>10}{:>14}{:>18}", name, columns[0].plain.samples, speed(fp32),
                 speed(bf16)));
  };
  row(format("Fleet, predicted, seq {}, every block", options.seq), columns[0].blocks,
      columns[1].blocks);
  row(format("Fleet, predicted, seq {}, planned", options.seq), columns[0].planned,
      columns[1].planned);
  row(format("Fleet, predicted, seq {}, planned + offload", options.seq), columns[0].offloaded,
      columns[1].offloaded);
  print(format(
      "\nThe guide's program has samples of up to 512 tokens; it does not name its cards, and "
      "V100s "
      "of 32 GB are\nassumed. Fleet's speeds are predicted, against plain in the same type, for "
      "{:.0f} "
      "GFLOP/s and {:.0f} GB/s;\nthe guide's are measured, against plain in fp32. amp here: bf16 "
      "throughout, with fp32 masters.",
      options.gflops, options.bandwidth));
}

}  // namespace

int plan(int argc, char** argv) {
  PlanCommandOptions options;
  parse({.about = "predicts which batch fits into how much memory, with and without recompute; "
                  "allocates nothing",
         .groups = {{"Flags", options}},
         .examples = {"fleet plan --model bert-large --seq 512 --batch 256 --budget 32GiB --svg "
                      "plan.svg",
                      "fleet plan --guide"}},
        argc, argv);
  const auto budget = byte_size(options.budget).value_or(0);
  constexpr int64_t kMost = int64_t{1} << 50;  // beyond it, batches have no counted sizes
  if (budget > kMost) {
    throw UsageError(
        "plan", format("--budget: {} is more than one process can have", byte_size_text(budget)),
        "give the memory of one rank, such as 32GiB");
  }
  if (budget <= 0 || lacks_unit(options.budget)) {
    throw UsageError("plan", format("--budget: '{}' is no amount of memory", options.budget),
                     budget <= 0
                         ? std::string("write a size such as 32GiB")
                         : format("write a size with its unit, such as {}GiB", options.budget));
  }
  const std::vector<OutputPlace> outputs = {{options.svg, "--svg", "plan"},
                                            {options.json, "--json", "plan"}};
  check_overwrites_nothing(outputs, {});
  for (const auto& place : outputs) {
    if (!place.path.empty()) check_output_file(place);
  }
  if (options.guide) {
    compare_with_guide(options);
  } else {
    plan_model(options, budget);
  }
  return 0;
}

}  // namespace fleet::tool
