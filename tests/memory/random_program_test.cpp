// SPDX-License-Identifier: Apache-2.0
// Random programs under every policy, against plain autograd: bit for bit.

#include "tests/memory/random_program.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "fleet/core/torch/interception.h"
#include "fleet/memory/eviction/eviction_pool.h"
#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/replay/replay.h"
#include "fleet/memory/tape/policies.h"

namespace fleet::testing {
namespace {

using memory::OpRecord;
using memory::Tape;
using memory::TapePolicy;
using memory::TapeScope;
using torch::Tensor;

// Cuts at every checkpoint; all segments have the given treatment.
class AtCheckpoints : public TapePolicy {
 public:
  explicit AtCheckpoints(Treatment treatment) : treatment_(treatment) {}
  bool cut_at(std::string_view /*name*/) override { return true; }
  Treatment treatment(int segment) override {
    return treatment_ == Treatment::kKeep && segment % 2 == 1 ? Treatment::kDrop : treatment_;
  }

 private:
  Treatment treatment_;
};

// Nothing is recomputed; two of three segments are offloaded.
class KeptAndOffloaded final : public AtCheckpoints {
 public:
  KeptAndOffloaded() : AtCheckpoints(Treatment::kEvictEagerly) {}
  Treatment treatment(int /*segment*/) override { return Treatment::kKeep; }
  bool offloads(int segment) override { return segment % 3 != 1; }
};

// Results of some ops are recomputed selectively; segments at checkpoints are kept or dropped.
class Selective final : public AtCheckpoints {
 public:
  explicit Selective(Treatment treatment, bool all) : AtCheckpoints(treatment), all_(all) {}
  bool recomputes_results_of(const OpRecord& op) override {
    return all_ || (std::hash<std::string>()(op.traits->name) % 3 != 0);
  }

 private:
  bool all_;
};

// As if memory were short now and then: some values are evicted, or all that can be.
class RandomEvictions final : public memory::ReplayObserver {
 public:
  explicit RandomEvictions(int seed) : random_(static_cast<uint64_t>(seed)) {}
  void evict_sometimes() {
    if (random_() % 4 == 0) evict();
  }
  void evict() {
    const auto bytes = random_() % 2 == 0 ? std::numeric_limits<int64_t>::max() : 1;
    freed += memory::EvictionPool::evict(bytes);
  }
  // In the middle of a replay.
  void replayed(int /*op*/, double /*seconds*/, bool /*is_whole*/) override { evict_sometimes(); }
  void recomputed(double /*overhead*/) override { evict_sometimes(); }

  static inline int64_t freed = 0;

 private:
  std::mt19937_64 random_;
};

// Before some ops, values are evicted. Segments end at checkpoints, or nowhere.
class EvictAtRandom final : public TapePolicy {
 public:
  EvictAtRandom(bool cuts, int seed) : cuts_(cuts), evictions_(seed) {}
  bool cut_before_op(const Tape& /*tape*/, const memory::OpTraits& /*op*/) override {
    evictions_.evict_sometimes();
    return false;
  }
  bool cut_at(std::string_view /*name*/) override { return cuts_; }
  Treatment treatment(int segment) override {
    if (!cuts_ || segment % 3 == 0) return Treatment::kEvictOnDemand;
    return segment % 3 == 1 ? Treatment::kEvictEagerly : Treatment::kKeep;
  }

 private:
  bool cuts_;
  RandomEvictions evictions_;
};

// The names of a forward's ops, which a plan needs.
class Names final : public TapePolicy {
 public:
  bool cut_before_op(const Tape& /*tape*/, const memory::OpTraits& op) override {
    names.push_back(op.name);
    return false;
  }
  Treatment treatment(int /*segment*/) override { return Treatment::kKeep; }

  std::vector<std::string> names;
};

using MakePolicy = std::function<std::unique_ptr<TapePolicy>()>;

struct Variant {
  std::string name;
  MakePolicy policy;  // null: plain
  bool with_recompute = false;
  bool with_offload = false;
  bool with_plan = false;       // a random one for the program
  bool with_evictions = false;  // in backward
};

// How often and where a program is run.
struct Course {
  explicit Course(int number)
      : graphs(number % 5 == 4 ? 2 : 1),
        retains(number % 7 == 6),
        on_other_thread(number % 11 == 5),
        twice(number % 6 == 2) {}
  int graphs;
  bool retains;
  bool on_other_thread;  // backward is
  bool twice;            // the gradient's gradient is taken
};

// Everything that can be offloaded is, and is on disk before the forward continues.
const memory::Offload& offload() {
  static const auto* const to_file = [] {
    auto* offload = new memory::Offload(
        std::make_shared<memory::OffloadFile>(memory::OffloadOptions{.page_cache = true}));
    offload->min_bytes = 1;
    offload->is_synchronous = true;
    return offload;
  }();
  return *to_file;
}

template <typename P, typename... Args>
std::function<std::unique_ptr<TapePolicy>()> make(Args... args) {
  return [=] { return std::make_unique<P>(args...); };
}

const std::vector<Variant>& variants() {
  using enum TapePolicy::Treatment;
  static const std::vector<Variant> all = {
      {"keep all", make<memory::KeepAll>()},
      {"segments at checkpoints", make<AtCheckpoints>(kDrop)},
      {"segments at checkpoints, eagerly", make<AtCheckpoints>(kEvictEagerly)},
      {"every second segment", make<AtCheckpoints>(kKeep)},
      {"automatic cuts", make<memory::AutomaticCuts>(500, 1)},
      {"automatic cuts, many alive", make<memory::AutomaticCuts>(2000, 4)},
      {"selective, all", make<Selective>(kKeep, true)},
      {"selective, some", make<Selective>(kKeep, false)},
      {"selective in segments", make<Selective>(kDrop, false)},
      {"selective in segments, eagerly", make<Selective>(kEvictEagerly, false)},
      {"recompute()", nullptr, true},
      {"recompute() in segments", make<AtCheckpoints>(kDrop), true},
      {"recompute(), selective", make<Selective>(kKeep, false), true},
      {"offload", make<AtCheckpoints>(kDrop), false, true},
      {"offload, recompute() in every second segment", make<AtCheckpoints>(kKeep), true, true},
      {"offload, selective in segments", make<Selective>(kDrop, false), false, true},
      {"offload, everything kept", make<KeptAndOffloaded>(), false, true},
      {"offload, automatic cuts", make<memory::AutomaticCuts>(500, 2), false, true},
      {.name = "evictions", .policy = make<EvictAtRandom>(false, 1), .with_evictions = true},
      {.name = "evictions, recompute()",
       .policy = make<EvictAtRandom>(false, 2),
       .with_recompute = true,
       .with_evictions = true},
      {.name = "evictions, segments",
       .policy = make<EvictAtRandom>(true, 3),
       .with_evictions = true},
      {.name = "evictions, offload",
       .policy = make<EvictAtRandom>(true, 4),
       .with_offload = true,
       .with_evictions = true},
      {.name = "plan", .with_plan = true},
      {.name = "plan, recompute()", .with_recompute = true, .with_plan = true},
      {.name = "plan, offload", .with_offload = true, .with_plan = true},
  };
  return all;
}

struct Outcome {
  bool rejected = false;
  std::string why;
  std::vector<Tensor> tensors;  // loss, gradients, buffers, and the generator's next numbers
};

// A plan of random cuts, for a program whose forward has these ops.
MakePolicy draw_plan(RandomProgram& program, int number) {
  Names names;
  program.reset();
  torch::manual_seed(5);
  try {
    TapeScope scope(names);
    program.forward(/*with_recompute=*/false);
  } catch (const std::exception&) {  // a program that LibTorch rejects
  }
  std::mt19937_64 random(static_cast<uint64_t>(number));
  memory::Plan plan{.ops = names.names};
  const auto draw_segment = [&](int op) {
    return memory::Plan::Segment{
        .first_op = op, .is_dropped = random() % 2 == 0, .is_offloaded = random() % 2 == 0};
  };
  plan.segments.push_back(draw_segment(0));
  for (int op = 1; op < static_cast<int>(plan.ops.size()); ++op) {
    if (random() % 4 == 0) plan.segments.push_back(draw_segment(op));
  }
  for (size_t op = 0; op < plan.ops.size(); ++op) plan.recomputed.push_back(random() % 3 == 0);
  const auto shared = std::make_shared<const memory::Plan>(std::move(plan));
  return [shared] { return std::make_unique<memory::PlannedPolicy>(shared); };
}

void run_backward(const Tensor& loss, const std::vector<Tensor>& parameters, const Course& course) {
  if (course.retains) loss.backward({}, /*retain_graph=*/true);
  if (!course.twice) return loss.backward();
  auto sum = loss;
  for (const auto& gradient :
       torch::autograd::grad({loss}, parameters, {}, /*retain_graph=*/true, /*create_graph=*/true,
                             /*allow_unused=*/true)) {
    if (gradient.defined()) sum = sum + gradient.square().sum();
  }
  sum.backward();
}

void on_another_thread(const std::function<void()>& work) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

Outcome train(RandomProgram& program, const Variant* variant, const MakePolicy& plan,
              const Course& course) {
  Outcome outcome;
  program.reset();
  torch::manual_seed(5);
  std::vector<Tensor> losses;
  try {
    for (int i = 0; i < course.graphs; ++i) {
      if (variant && (variant->policy || variant->with_plan)) {
        const auto policy = variant->with_plan ? plan() : variant->policy();
        TapeScope scope(*policy, variant->with_offload ? &offload() : nullptr);
        losses.push_back(program.forward(variant->with_recompute));
      } else {
        losses.push_back(program.forward(variant && variant->with_recompute));
      }
    }
    const auto backward = [&] {
      if (!variant || !variant->with_evictions) {
        for (const auto& loss : losses) run_backward(loss, program.parameters(), course);
        return;
      }
      RandomEvictions evictions(7);
      struct Observed {
        explicit Observed(memory::ReplayObserver* observer)
            : before(memory::ReplayObserver::exchange(observer)) {}
        ~Observed() { memory::ReplayObserver::exchange(before); }
        memory::ReplayObserver* before;
      } const observed(&evictions);
      for (const auto& loss : losses) {
        evictions.evict();
        run_backward(loss, program.parameters(), course);
      }
    };
    course.on_other_thread ? on_another_thread(backward) : backward();
  } catch (const std::exception& error) {
    outcome.rejected = true;
    outcome.why = error.what();
    losses.clear();
    compat::flush_failed_backward();
    return outcome;
  }
  for (const auto& loss : losses) outcome.tensors.push_back(loss.detach().clone());
  for (const auto& parameter : program.parameters()) {
    outcome.tensors.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor());
  }
  for (const auto& buffer : program.buffers()) outcome.tensors.push_back(buffer.clone());
  outcome.tensors.push_back(torch::rand({4}));
  outcome.tensors.push_back(program.next_numbers());
  return outcome;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  const auto x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

class RandomPrograms : public ::testing::TestWithParam<int> {};

// Each of these runs one chunk of the programs; FLEET_PROGRAMS sets how many there are in all.
constexpr int kChunks = 16;

TEST_P(RandomPrograms, EqualPlain) {
  const char* wanted = std::getenv("FLEET_PROGRAMS");
  const int programs = wanted ? std::atoi(wanted) : 1600;
  const char* only = std::getenv("FLEET_PROGRAM");
  at::set_num_threads(1);
  int accepted = 0, rejected = 0, runs = 0, unseen_writes = 0, leaky = 0;
  static int64_t leaked = 0;
  const auto before = memory::replay_totals();
  const auto read_before = offload().file->statistics().bytes_read;
  for (int number = GetParam(); number < programs; number += kChunks) {
    if (only && number != std::atoi(only)) continue;
    RandomProgram program(static_cast<uint64_t>(number));
    const Course course(number);
    const auto plan = draw_plan(program, number);
    const auto plain = train(program, nullptr, plan, course);
    plain.rejected ? ++rejected : ++accepted;
    for (const auto& variant : variants()) {
      const auto ours = train(program, &variant, plan, course);
      ++runs;
      const bool has_tape = variant.policy || variant.with_plan;
      ASSERT_EQ(ours.why.find("internal error"), std::string::npos)
          << "program " << number << ", " << variant.name << "\n"
          << ours.why << "\n"
          << program.text();
      // Without a tape around it, recompute() cannot see writes to its inputs after it: it throws.
      if (!has_tape && ours.why.find("changed in place after the forward") != std::string::npos) {
        ++unseen_writes;
        continue;
      }
      ASSERT_EQ(ours.rejected, plain.rejected)
          << "program " << number << ", " << variant.name << "\nplain: " << plain.why
          << "\nours: " << ours.why << "\n"
          << program.text();
      for (size_t i = 0; i < plain.tensors.size(); ++i) {
        ASSERT_TRUE(same_bits(ours.tensors[i], plain.tensors[i]))
            << "program " << number << ", " << variant.name << ", tensor " << i << "\n"
            << plain.tensors[i] << "\n"
            << ours.tensors[i] << "\n"
            << program.text();
      }
      // LibTorch itself leaks the graphs of some programs with ops in place; a tape does not.
      if (!has_tape && memory::Region::alive() != leaked) {
        leaked = memory::Region::alive();
        ++leaky;
      }
      ASSERT_EQ(memory::Region::alive(), leaked) << "program " << number << ", " << variant.name
                                                 << (plain.rejected ? ", rejected" : "") << "\n"
                                                 << program.text();
    }
  }
  const auto after = memory::replay_totals();
  RecordProperty("accepted", accepted);
  RecordProperty("rejected", rejected);
  std::cout << accepted << " programs accepted, " << rejected << " rejected, " << runs << " runs, "
            << after.recomputations - before.recomputations << " recomputations, "
            << after.ops - before.ops << " ops replayed, "
            << after.stopped_early - before.stopped_early << " of them stopped early\n";
  if (!only) {
    EXPECT_GT(accepted, rejected / 2);
    EXPECT_LE(unseen_writes, programs / kChunks / 10);
    EXPECT_LE(leaky, programs / kChunks / 50);
    EXPECT_GT(after.recomputations - before.recomputations, runs);
    EXPECT_GT(offload().file->statistics().bytes_read - read_before, 64 * accepted);
    EXPECT_GT(RandomEvictions::freed, 1000 * accepted);
  }
}

INSTANTIATE_TEST_SUITE_P(Chunks, RandomPrograms, ::testing::Range(0, kChunks));

}  // namespace
}  // namespace fleet::testing
