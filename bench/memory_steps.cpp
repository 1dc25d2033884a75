// SPDX-License-Identifier: Apache-2.0
#include "bench/memory_steps.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "fleet/applications/bert.h"
#include "fleet/applications/data/synthetic.h"
#include "fleet/applications/resnet.h"
#include "fleet/core/log.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/format.h"
#include "fleet/data/text/bert_batch.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/planner.h"

namespace fleet::bench {
namespace {

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

}  // namespace

memory::MemoryCounter& counter() { return memory::BudgetAllocator::cpu().counter(); }

Net two_bert_blocks() {
  applications::BertOptions options;
  options.vocab = 1000;
  options.layers = 2;
  return bert(options.resolved(), 128);
}

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

Step run(const Net& net, int64_t samples, const Way& way,
         const std::shared_ptr<memory::Profiler>& profiler) {
  for (const auto& parameter : net.parameters) parameter.mutable_grad().zero_();
  net.make_batch(samples);
  counter().reset_peaks();
  const auto before = counter().live();
  const auto begin = std::chrono::steady_clock::now();
  {
    torch::Tensor loss;
    if (way.policy) {
      const auto policy = way.policy();
      memory::TapeScope scope(*policy, profiler, way.offload);
      loss = net.loss();
    } else {
      loss = net.loss();
    }
    loss.backward();
  }
  const double seconds = seconds_since(begin);
  return {.seconds = seconds, .peak = counter().peak() - before};
}

Way evict_on_demand() {
  return {.policy = [] { return std::make_unique<memory::EvictOnDemand>(); }};
}

memory::StepProfile profile_of(const Net& net, int64_t samples) {
  const auto profiler = std::make_shared<memory::Profiler>(counter());
  run(net, samples, evict_on_demand(), profiler);
  return profiler->finish();
}

Way named(std::string way, std::vector<std::string> names) {
  return {std::move(way),
          [names = std::move(names)] { return std::make_unique<memory::NamedCuts>(names); }};
}

std::optional<Way> planned(std::string name, const memory::StepProfile& profile, int64_t budget,
                           const Disk* disk) {
  auto made = memory::make_plan(profile, {.budget = budget, .disk = Disk::speed_of(disk)});
  if (!made) return std::nullopt;
  const auto plan = std::make_shared<const memory::Plan>(std::move(*made));
  return Way{std::move(name), [plan] { return std::make_unique<memory::PlannedPolicy>(plan); },
             disk ? &disk->offload : nullptr, plan};
}

std::vector<std::string> square_root(const std::vector<std::string>& names) {
  const auto step = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(names.size()))));
  std::vector<std::string> few;
  for (size_t i = step - 1; i < names.size(); i += step) few.push_back(names[i]);
  return few;
}

Row predicted_row(const std::string& name, const Way& way, int64_t base, int64_t peak) {
  const double predicted = mib(way.plan->predicted_peak), measured = mib(base + peak);
  return {name + ", predicted peak", predicted, "MiB", "counted", measured,
          predicted / measured,      ""};
}

void RowPrinter::print_new() {
  for (; printed_ < rows_.size(); ++printed_) {
    const auto& row = rows_[printed_];
    log::info("bench", format("{}: {:.6g} {} {}", row.name, row.value, row.unit, row.note));
  }
}

}  // namespace fleet::bench
