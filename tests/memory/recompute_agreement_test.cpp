// SPDX-License-Identifier: Apache-2.0
// "Can this value be recomputed, and from what" is asked by the tape, a region's replay, selective
// recomputation and the plan simulation: on random graphs they must agree.

#include <memory>
#include <random>
#include <set>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/plan/simulation/plan_simulation.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/replay/replay_need.h"
#include "fleet/memory/replay/replay_rules.h"
#include "fleet/memory/replay/selective_recipe.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"

namespace fleet::memory {
namespace {

using torch::Tensor;

constexpr int kBegin = 2;  // the ops before it belong to an earlier segment

struct Graph {
  struct Op {
    std::vector<int> reads;  // values
    int written = -1;        // one of them
    int result = -1;         // a value
    bool is_view = false;
    bool can_replay = true;
    std::vector<bool> is_kept;  // by input
  };
  struct Value {
    int producer, storage;
  };
  std::vector<Op> ops;
  std::vector<Value> values;
  std::vector<std::vector<int>> writers;  // by storage
  std::set<std::pair<int, uint32_t>> available;

  uint32_t version(int value, int time) const {
    const auto& all = writers[static_cast<size_t>(values[static_cast<size_t>(value)].storage)];
    return static_cast<uint32_t>(std::ranges::count_if(all, [&](int w) { return w < time; }));
  }
  bool is_inside(int value) const {
    const int storage = values[static_cast<size_t>(value)].storage;
    return storage >= kBegin;
  }
  bool is_available(int value, int time) const {
    return available.contains({value, version(value, time)});
  }
};

Graph draw_graph(std::mt19937_64& random, bool keeps_all_inputs, bool has_available) {
  Graph graph;
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  for (int op = 0; op < kBegin; ++op) {
    graph.ops.push_back({.result = op});
    graph.values.push_back({.producer = op, .storage = op});
    graph.writers.emplace_back();
  }
  const int n = kBegin + 2 + below(12);
  for (int op = kBegin; op < n; ++op) {
    Graph::Op entry{.can_replay = below(8) != 0};
    const auto pick = [&] { return below(static_cast<int>(graph.values.size())); };
    entry.reads.push_back(pick());
    const int kind = below(4);
    if (kind == 0) {
      entry.is_view = entry.can_replay = true;
    } else if (kind == 1) {
      entry.written = entry.reads[0];
      if (!graph.is_inside(entry.written)) entry.can_replay = false;
    }
    if (!entry.is_view && below(2) == 0) entry.reads.push_back(pick());
    for (const int value : entry.reads) {
      entry.is_kept.push_back(!graph.is_inside(value) &&
                              (keeps_all_inputs || value >= kBegin || below(6) != 0));
    }
    if (entry.written >= 0) {
      const int storage = graph.values[static_cast<size_t>(entry.written)].storage;
      graph.writers[static_cast<size_t>(storage)].push_back(op);
    } else {
      entry.result = static_cast<int>(graph.values.size());
      int storage = static_cast<int>(graph.writers.size());
      if (entry.is_view) {
        storage = graph.values[static_cast<size_t>(entry.reads[0])].storage;
      } else {
        graph.writers.emplace_back();
      }
      graph.values.push_back({.producer = op, .storage = storage});
    }
    graph.ops.push_back(std::move(entry));
  }
  for (int value = 0; has_available && value < static_cast<int>(graph.values.size()); ++value) {
    if (!graph.is_inside(value) || below(4) != 0) continue;
    const int made = graph.values[static_cast<size_t>(value)].producer;
    graph.available.insert({value, graph.version(value, made + 1 + below(n - made))});
  }
  return graph;
}

// What the four are held against: everything that can be called is, in order.
struct Reference {
  explicit Reference(const Graph& g) : graph(g) {
    for (int op = 0; op < static_cast<int>(graph.ops.size()); ++op) {
      const auto& entry = graph.ops[static_cast<size_t>(op)];
      bool runs = op >= kBegin && entry.can_replay;
      for (size_t i = 0; runs && i < entry.reads.size(); ++i) {
        runs = entry.is_kept[i] || graph.is_available(entry.reads[i], op) ||
               is_recomputed(entry.reads[i], op);
      }
      ran.push_back(runs);
    }
  }
  bool is_recomputed(int value, int time) const {
    const auto& entry = graph.values[static_cast<size_t>(value)];
    const auto& writers = graph.writers[static_cast<size_t>(entry.storage)];
    return ran[static_cast<size_t>(entry.producer)] && std::ranges::all_of(writers, [&](int op) {
             return op >= time || ran[static_cast<size_t>(op)];
           });
  }
  // Ops that a replay for this value calls.
  void add_needed(int value, int time, std::set<int>& ops) const {
    const auto& entry = graph.values[static_cast<size_t>(value)];
    auto makers = graph.writers[static_cast<size_t>(entry.storage)];
    std::erase_if(makers, [&](int op) { return op >= time; });
    makers.push_back(entry.producer);
    for (const int op : makers) {
      if (!ops.insert(op).second) continue;
      const auto& maker = graph.ops[static_cast<size_t>(op)];
      for (size_t i = 0; i < maker.reads.size(); ++i) {
        if (!maker.is_kept[i] && !graph.is_available(maker.reads[i], op)) {
          add_needed(maker.reads[i], op, ops);
        }
      }
    }
  }

  const Graph& graph;
  std::vector<bool> ran;
};

class RecomputeAll final : public TapePolicy {
 public:
  bool recomputes_results_of(const OpRecord& /*op*/) override { return true; }
};

// The graph as the tape would have recorded it.
struct Recorded {
  explicit Recorded(const Graph& graph)
      : values(/*lists_values=*/false),
        root(std::make_shared<Region>(nullptr, values.provenance(), 0)),
        region(std::make_shared<Region>(root, values.provenance(), kBegin)) {
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::mul", "Tensor");
    static const auto view = c10::Dispatcher::singleton().findSchemaOrThrow("aten::view", "");
    records.first_op = kBegin;
    std::vector<Tensor> by_storage;
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const auto& value = graph.values[v];
      if (static_cast<size_t>(value.storage) == by_storage.size()) {
        by_storage.push_back(torch::zeros({1}));
      }
      tensors.push_back(by_storage[static_cast<size_t>(value.storage)].view({1}));
      EXPECT_EQ(values.number_of(tensors.back(), value.producer,
                                 graph.is_inside(static_cast<int>(v)) ? region.get() : nullptr),
                static_cast<int>(v));
    }
    for (int op = 0; op < static_cast<int>(graph.ops.size()); ++op) {
      const auto& entry = graph.ops[static_cast<size_t>(op)];
      if (entry.written >= 0) {
        values.written(graph.values[static_cast<size_t>(entry.written)].storage, op);
      }
      if (op < kBegin) continue;
      const auto& schema = entry.is_view ? view : handle;
      auto record = std::make_shared<OpRecord>(op, schema, OpTraits::of(schema));
      record->can_replay = entry.can_replay;
      for (size_t i = 0; i < entry.reads.size(); ++i) {
        OpInput input{.value = entry.reads[i],
                      .version = graph.version(entry.reads[i], op),
                      .written = entry.reads[i] == entry.written};
        if (entry.is_kept[i]) input.kept = kept(entry.reads[i], graph, op);
        record->inputs.push_back(std::move(input));
      }
      if (entry.result >= 0) record->outputs.push_back({.value = entry.result});
      records.records.push_back(std::move(record));
    }
    for (const auto& [value, version] : graph.available) {
      available.push_back(
          std::make_shared<KeptValue>(tensors[static_cast<size_t>(value)],
                                      KeptValue::Origin{.value = value, .version = version}));
      values[value].kept.push_back(available.back());
    }
  }

  std::shared_ptr<KeptValue> kept(int value, const Graph& graph, int time) const {
    return std::make_shared<KeptValue>(
        tensors[static_cast<size_t>(value)],
        KeptValue::Origin{.value = value, .version = graph.version(value, time), .time = time});
  }

  TapeValues values;
  std::shared_ptr<Region> root, region;
  OpRecords records;
  std::vector<Tensor> tensors;
  std::vector<std::shared_ptr<KeptValue>> available;
};

// One block per storage, saved by the op before `time`.
StepProfile profile_of(const Graph& graph, int value, int time) {
  StepProfile profile;
  const auto storage_of = [&](int v) { return graph.values[static_cast<size_t>(v)].storage; };
  for (const auto& writers : graph.writers) {
    profile.blocks.push_back({.bytes = 1, .writers = writers});
  }
  for (const auto& op : graph.ops) {
    auto& entry = profile.ops.emplace_back();
    entry.can_replay = op.can_replay;
    entry.is_view = op.is_view;
    for (const int v : op.reads) entry.reads.push_back(storage_of(v));
    if (op.result < 0 || op.is_view) continue;
    const int block = storage_of(op.result);
    profile.blocks[static_cast<size_t>(block)].made = static_cast<int>(profile.ops.size()) - 1;
    entry.makes.push_back(block);
  }
  profile.ops[static_cast<size_t>(time) - 1].saves.push_back(storage_of(value));
  return profile;
}

bool simulation_recomputes(const Graph& graph, int value, int time) {
  const auto profile = profile_of(graph, value, time);
  const int n = static_cast<int>(graph.ops.size());
  const std::vector<char> all(graph.ops.size(), 1);
  return PlanSimulation(profile).interval(kBegin, n, /*is_dropped=*/false, all).held == 0;
}

TEST(RecomputeAgreement, ReplayRecipeAndSimulationAgreeOnRandomGraphs) {
  std::mt19937_64 random(11);
  int possible = 0, impossible = 0;
  for (int number = 0; number < 3000; ++number) {
    SCOPED_TRACE(number);
    // A simulation knows of no inputs that were not kept, nor of values at hand for other reasons.
    const bool is_simulated = number % 2 == 0;
    const auto graph = draw_graph(random, is_simulated, !is_simulated);
    const Reference reference(graph);
    const Recorded recorded(graph);
    RecomputeAll policy;
    const int n = static_cast<int>(graph.ops.size());
    for (int value = kBegin; value < static_cast<int>(graph.values.size()); ++value) {
      const int made = graph.values[static_cast<size_t>(value)].producer;
      const int time = made + 1 + static_cast<int>(random() % static_cast<uint64_t>(n - made));
      if (!graph.is_inside(value) || graph.is_available(value, time)) continue;
      const bool expected = reference.is_recomputed(value, time);
      expected ? ++possible : ++impossible;
      const auto kept = recorded.kept(value, graph, time);

      AvailableValues available;
      for (const auto& one : recorded.available) available.add(one);
      ReplayNeed need(*recorded.region, *recorded.values.provenance(), recorded.records.records,
                      available);
      ASSERT_EQ(need.possible(*kept), expected) << "replay: value " << value << " at " << time;
      if (expected) {
        need.mark(*kept);
        std::set<int> needed;
        reference.add_needed(value, time, needed);
        for (int op = kBegin; op < n; ++op) {
          ASSERT_EQ(need.is_needed(op), needed.contains(op))
              << "op " << op << " for value " << value << " at " << time;
        }
      }

      SelectiveRecipe recipe(recorded.values, policy, recorded.records, *recorded.region);
      ASSERT_EQ(recipe.can_recompute(*kept), expected)
          << "recipe: value " << value << " at " << time;

      if (is_simulated) {
        ASSERT_EQ(simulation_recomputes(graph, value, time), expected)
            << "simulation: value " << value << " at " << time;
      }
    }
  }
  EXPECT_GT(possible, 3000);
  EXPECT_GT(impossible, 1500);
}

}  // namespace
}  // namespace fleet::memory
