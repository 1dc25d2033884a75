// SPDX-License-Identifier: Apache-2.0
// What a tape holds after a real forward: the same with eager eviction, and in the simulation.

#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/plan/simulation/plan_simulation.h"
#include "fleet/memory/replay/replay_rules.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"

namespace fleet::memory {
namespace {

using torch::Tensor;

// Ops by index; views follow what they are views of.
class RecomputeSome final : public TapePolicy {
 public:
  explicit RecomputeSome(std::vector<char> recomputed, Treatment treatment)
      : recomputed_(std::move(recomputed)), treatment_(treatment) {}
  bool cut_at(std::string_view /*name*/) override { return true; }
  Treatment treatment(int /*segment*/) override { return treatment_; }
  bool recomputes_results_of(const OpRecord& op) override {
    const auto i = static_cast<size_t>(op.index);
    return i < recomputed_.size() && recomputed_[i];
  }

 private:
  std::vector<char> recomputed_;
  Treatment treatment_;
};

struct Watched {
  int op;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
};

// A chain with skips, views and writes in place. Its tensors are gone at its end, but for what
// autograd and the tape keep.
std::vector<Watched> run_program(uint64_t number, const Tensor& leaf, Tensor& loss,
                                 std::vector<char>* is_made_by_view) {
  std::mt19937_64 random(number);
  std::vector<Watched> watched;
  std::vector<Tensor> pool{leaf * 1, leaf * 2};
  const auto watch = [&](const Tensor& tensor) {
    watched.push_back({Tape::current()->next_op() - 1,
                       decltype(Watched::storage)(
                           c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(
                               tensor.storage().unsafeGetStorageImpl()))});
  };
  watched.reserve(64);
  const int steps = 3 + static_cast<int>(random() % 12);
  std::vector<char> views(2, 0);
  for (int i = 0; i < steps; ++i) {
    const auto pick = [&]() -> Tensor& { return pool[random() % pool.size()]; };
    const auto a = pick();
    const auto b = pick();
    Tensor made;
    const auto kind = random() % 7;
    views.push_back(kind == 5);
    switch (kind) {
      case 0:
        made = a * b;
        break;
      case 1:
        made = a.tanh();
        break;
      case 2:
        made = a.erfc();
        break;  // which must not be called again
      case 3:
        made = a + b;
        break;
      case 4:
        made = a.sigmoid();
        break;
      case 5:
        made = a.view({-1, 4});
        break;
      default:
        a.detach().add_(1);
        views.push_back(0);
        continue;
    }
    if (kind != 2 && kind != 5) watch(made);
    pool.push_back(made);
  }
  loss = pool[0].sum();
  for (const auto& value : pool) loss = loss + value.sum();  // so that no graph dies early
  views.resize(static_cast<size_t>(Tape::current()->next_op()), 0);
  if (is_made_by_view) *is_made_by_view = views;
  return watched;
}

std::set<int> alive(const std::vector<Watched>& watched) {
  std::set<int> ops;
  for (const auto& one : watched) {
    if (one.storage.use_count() > 0) ops.insert(one.op);
  }
  return ops;
}

TEST(EvictionAgreement, EagerEvictionKeepsWhatTheEndOfTheSegmentKeeps) {
  never_replay({"aten::erfc"});
  using enum TapePolicy::Treatment;
  int evicted = 0;
  for (uint64_t number = 0; number < 400; ++number) {
    SCOPED_TRACE(number);
    std::set<int> kept[2];
    for (const auto treatment : {kDrop, kEvictEagerly}) {
      const auto leaf = torch::ones({4, 4}).requires_grad_();
      RecomputeSome policy({}, treatment);
      TapeScope scope(policy);
      Tensor loss;
      const auto watched = run_program(number, leaf, loss, nullptr);
      if (treatment == kDrop) scope.tape().checkpoint("end", loss);
      kept[treatment == kDrop ? 0 : 1] = alive(watched);
      evicted += static_cast<int>(watched.size() - alive(watched).size());
    }
    ASSERT_EQ(kept[0], kept[1]);
  }
  EXPECT_GT(evicted, 400);
}

TEST(EvictionAgreement, SimulationHoldsWhatTheTapeHolds) {
  never_replay({"aten::erfc"});
  const BudgetAllocatorScope counting(BudgetAllocator::cpu());
  int held_values = 0, recomputed_values = 0, differing = 0;
  for (uint64_t number = 0; number < 400; ++number) {
    SCOPED_TRACE(number);
    const auto leaf = torch::ones({4, 4}).requires_grad_();
    const auto profiler = std::make_shared<Profiler>(BudgetAllocator::cpu().counter());
    KeepAll keep_all;
    std::vector<char> is_view;
    Tensor loss;
    {
      TapeScope scope(keep_all, profiler);
      run_program(number, leaf, loss, &is_view);
    }
    try {
      loss.backward();
    } catch (const std::exception&) {  // something that was saved was changed in place
      loss.reset();
      compat::flush_failed_backward();
      continue;
    }
    auto profile = profiler->finish();
    const auto n = static_cast<int>(profile.ops.size());
    std::mt19937_64 random(number);
    std::vector<char> recomputed;
    for (int op = 0; op < n; ++op) {
      recomputed.push_back(random() % 3 != 0 || is_view[static_cast<size_t>(op)]);
    }
    for (size_t b = 0; b < profile.blocks.size(); ++b) profile.blocks[b].bytes = int64_t{1} << b;
    const auto held = PlanSimulation(profile).interval(0, n, /*is_dropped=*/false, recomputed).held;
    RecomputeSome policy(recomputed, TapePolicy::Treatment::kKeep);
    TapeScope scope(policy);
    const auto watched = run_program(number, leaf, loss, nullptr);
    const auto kept = alive(watched);
    for (size_t b = 0; b < profile.blocks.size(); ++b) {
      const int made = profile.blocks[b].made;
      if (std::ranges::find(watched, made, &Watched::op) == watched.end()) continue;
      const bool is_held = (held & (int64_t{1} << b)) != 0;
      differing += is_held != kept.contains(made);
      is_held ? ++held_values : ++recomputed_values;
    }
  }
  // A simulation follows storages, the tape values and their versions.
  EXPECT_LE(differing, 1);
  EXPECT_GT(held_values, 200);
  EXPECT_GT(recomputed_values, 200);
}

}  // namespace
}  // namespace fleet::memory
