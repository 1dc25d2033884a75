// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/recompute.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"

#include "tests/memory/equal_tensors.h"

namespace fleet::memory::closure_test {

using torch::Tensor;
using Treatment = TapePolicy::Treatment;

// Cuts at every `fleet::checkpoint`.
class AtMarks : public TapePolicy {
 public:
  explicit AtMarks(Treatment treatment, bool alone = false)
      : treatment_(treatment), alone_(alone) {}
  bool cut_at(std::string_view /*name*/) override { return true; }
  Treatment treatment(int /*segment*/) override { return treatment_; }
  bool recomputes_results_of(const OpRecord& /*op*/) override { return alone_; }

 private:
  Treatment treatment_;
  bool alone_;
};

// Counts the calls of each op on this thread while it lives.
class OpCounts {
 public:
  OpCounts()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&OpCounts::count).scopes({at::RecordScope::FUNCTION}))) {
    counts().clear();
  }
  ~OpCounts() { at::removeCallback(handle_); }
  OpCounts(const OpCounts&) = delete;
  OpCounts& operator=(const OpCounts&) = delete;

  int of(const std::string& name) const { return counts()[name]; }

 private:
  static std::map<std::string, int>& counts() {
    thread_local std::map<std::string, int> map;
    return map;
  }
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    ++counts()[function.name()];
    return nullptr;
  }

  at::CallbackHandle handle_;
};

class Closures : public ::testing::Test {
 protected:
  Closures() {
    at::set_num_threads(1);
    torch::manual_seed(1);
    offload_.min_bytes = 1;
    offload_.is_synchronous = true;
  }

  // Gradients of `leaves`, and the generator's next numbers.
  std::vector<Tensor> gradients(const std::function<Tensor()>& loss,
                                const std::vector<Tensor>& leaves, TapePolicy* policy,
                                const Offload* offload = nullptr) {
    torch::manual_seed(7);
    for (const auto& leaf : leaves) leaf.mutable_grad() = Tensor();
    Tensor value;
    if (policy) {
      TapeScope scope(*policy, offload);
      value = loss();
      report_ = scope.tape().report();
    } else {
      value = loss();
    }
    if (between_) between_();
    value.backward();
    std::vector<Tensor> result{value.detach().clone()};
    for (const auto& leaf : leaves) result.push_back(leaf.grad().clone());
    result.push_back(torch::rand({4}));
    return result;
  }

  // The loss under every treatment; with `by_hand`, all of it inside `fleet::recompute` too.
  void compare(const std::function<Tensor()>& loss, const std::vector<Tensor>& leaves) {
    const auto plain = gradients(loss, leaves, nullptr);
    for (const auto treatment : {Treatment::kKeep, Treatment::kDrop, Treatment::kEvictEagerly}) {
      for (const bool alone : {false, true}) {
        for (const bool offloaded : {false, true}) {
          SCOPED_TRACE(format("treatment {}, selective {}, offload {}", static_cast<int>(treatment),
                              alone, offloaded));
          AtMarks policy(treatment, alone);
          expect_equal(gradients(loss, leaves, &policy, offloaded ? &offload_ : nullptr), plain);
        }
      }
    }
    AutomaticCuts cuts(256, 2);
    expect_equal(gradients(loss, leaves, &cuts), plain);
    const auto by_hand = [&] { return recompute(loss); };
    expect_equal(gradients(by_hand, leaves, nullptr), plain);
    AtMarks eager(Treatment::kEvictEagerly);
    expect_equal(gradients(by_hand, leaves, &eager), plain);
    compare_planned(loss, leaves, plain);
    compare_planned(by_hand, leaves, plain);
    EXPECT_EQ(Region::alive(), 0);
  }

  // By plans: what the planner finds, and one that recomputes as much as it can.
  void compare_planned(const std::function<Tensor()>& loss, const std::vector<Tensor>& leaves,
                       const std::vector<Tensor>& plain) {
    const BudgetAllocatorScope counting(BudgetAllocator::cpu());
    AutomaticCuts minimal_memory(256, 2);
    const auto profiler = std::make_shared<Profiler>(BudgetAllocator::cpu().counter());
    {
      torch::manual_seed(7);
      for (const auto& leaf : leaves) leaf.mutable_grad() = Tensor();
      Tensor value;
      {
        TapeScope scope(minimal_memory, profiler);
        value = loss();
      }
      value.backward();
    }
    const auto profile = profiler->finish();
    EXPECT_LT(profile.plain_seconds(), 60);
    auto all = keep_everything(profile);
    all.segments.clear();
    const auto ops = static_cast<int>(profile.ops.size());
    for (int op = 0; op < ops; op += 3)
      all.segments.push_back({.first_op = op, .is_dropped = true});
    for (const auto& plan : {least_memory(profile), all}) {
      SCOPED_TRACE(plan.describe());
      PlannedPolicy policy(std::make_shared<const Plan>(plan));
      expect_equal(gradients(loss, leaves, &policy), plain);
      EXPECT_FALSE(policy.has_diverged());
    }
  }

  Offload offload_{std::make_shared<OffloadFile>(OffloadOptions{.page_cache = true})};
  std::function<void()> between_;  // forward and backward
  TapeReport report_;
};

inline Tensor leaf(at::IntArrayRef sizes, torch::ScalarType dtype = torch::kFloat) {
  return torch::randn(sizes, dtype).requires_grad_();
}

}  // namespace fleet::memory::closure_test
