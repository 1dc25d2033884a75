// SPDX-License-Identifier: Apache-2.0
#include <torch/utils.h>

#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/tape/policies.h"

#include "bench/benches.h"
#include "bench/memory_steps.h"

namespace fleet::bench {
namespace {

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
                                       memory::TapeScope scope(keep);
                                       chain();
                                     }});
  const double plain = timings[0].best() / kOps * 1e6;
  const double taped = timings[1].best() / kOps * 1e6;
  rows.push_back({"mul of 8 floats, tape on", taped, "us", "plain", plain, plain / taped,
                  format("{:+.2f} us per op, everything kept", taped - plain)});
}

// Blocks of BERT-base's width, everything kept.
void tape_on_blocks(std::vector<Row>& rows) {
  const auto net = two_bert_blocks();
  for (const auto& parameter : net.parameters) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  const Way plain, taped{.policy = [] { return std::make_unique<memory::KeepAll>(); }};
  const auto timings = alternate(41, {[&] { run(net, 2, plain); }, [&] { run(net, 2, taped); }});
  const Slowdown slowdown(timings[1], timings[0]);
  rows.push_back({net.name + ", tape on, everything kept", timings[1].median() * 1e3, "ms", "plain",
                  timings[0].median() * 1e3, 1 / slowdown.middle, slowdown.text()});
}

}  // namespace

// The cost of recording alone.
std::vector<Row> bench_tape() {
  const memory::BudgetAllocatorScope counting(memory::BudgetAllocator::cpu());
  torch::manual_seed(1);
  std::vector<Row> rows;
  per_op(rows);
  tape_on_blocks(rows);
  return rows;
}

}  // namespace fleet::bench
