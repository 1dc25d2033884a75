// Random programs, recomputed in every way there is, against plain autograd: bit for bit.

#include "tests/memory/random_program.h"

#include <cstdlib>
#include <functional>

#include <gtest/gtest.h>

#include "fleet/memory/away_memory.h"
#include "fleet/memory/policies.h"
#include "fleet/memory/region.h"
#include "fleet/memory/replay.h"

namespace fleet::testing {
namespace {

using memory::OpRecord;
using memory::Tape;
using memory::TapePolicy;
using memory::TapeScope;
using torch::Tensor;

// Cuts at every mark, and treats segments as told.
class AtMarks : public TapePolicy {
 public:
  explicit AtMarks(Treatment treatment) : treatment_(treatment) {}
  bool cut_at(std::string_view /*name*/) override { return true; }
  Treatment treatment(int segment) override {
    return treatment_ == Treatment::kKeep && segment % 2 == 1 ? Treatment::kDrop : treatment_;
  }

 private:
  Treatment treatment_;
};

// Nothing is recomputed; of three segments two leave.
class KeptElsewhere final : public AtMarks {
 public:
  KeptElsewhere() : AtMarks(Treatment::kDropAtOnce) {}
  Treatment treatment(int /*segment*/) override { return Treatment::kKeep; }
  bool sends_out(int segment) override { return segment % 3 != 1; }
};

// Values that cheap ops made are rebuilt one by one; segments at marks are kept or dropped.
class OneByOne final : public AtMarks {
 public:
  explicit OneByOne(Treatment treatment, bool all) : AtMarks(treatment), all_(all) {}
  bool rebuilds_results_of(const OpRecord& op) override {
    return all_ || (std::hash<std::string>()(op.traits->name) % 3 != 0);
  }

 private:
  bool all_;
};

struct Way {
  std::string name;
  std::function<std::unique_ptr<TapePolicy>()> policy;  // null: plain
  bool with_recompute = false;
  bool with_offload = false;
};

// Whatever can leave does, and is on disk before the forward goes on.
const memory::Offload& offload() {
  static const auto* const to_file = [] {
    auto* offload = new memory::Offload(
        std::make_shared<memory::OffloadFile>(memory::OffloadOptions{.page_cache = true}));
    offload->min_bytes = 1;
    offload->waits = true;
    return offload;
  }();
  return *to_file;
}

template <typename P, typename... Args>
std::function<std::unique_ptr<TapePolicy>()> make(Args... args) {
  return [=] { return std::make_unique<P>(args...); };
}

const std::vector<Way>& ways() {
  using enum TapePolicy::Treatment;
  static const std::vector<Way> all = {
      {"keep all", make<memory::KeepAll>()},
      {"segments at marks", make<AtMarks>(kDrop)},
      {"segments at marks, at once", make<AtMarks>(kDropAtOnce)},
      {"every second segment", make<AtMarks>(kKeep)},
      {"automatic cuts", make<memory::AutomaticCuts>(500, 1)},
      {"automatic cuts, many alive", make<memory::AutomaticCuts>(2000, 4)},
      {"one by one, all", make<OneByOne>(kKeep, true)},
      {"one by one, some", make<OneByOne>(kKeep, false)},
      {"one by one in segments", make<OneByOne>(kDrop, false)},
      {"one by one in segments, at once", make<OneByOne>(kDropAtOnce, false)},
      {"recompute()", nullptr, true},
      {"recompute() in segments", make<AtMarks>(kDrop), true},
      {"recompute(), one by one", make<OneByOne>(kKeep, false), true},
      {"offload", make<AtMarks>(kDrop), false, true},
      {"offload, recompute() in every second segment", make<AtMarks>(kKeep), true, true},
      {"offload, one by one in segments", make<OneByOne>(kDrop, false), false, true},
      {"offload, everything kept", make<KeptElsewhere>(), false, true},
      {"offload, automatic cuts", make<memory::AutomaticCuts>(500, 2), false, true},
  };
  return all;
}

struct Outcome {
  bool refused = false;
  std::string why;
  std::vector<Tensor> tensors;  // loss, gradients, buffers, and what the generator draws next
};

Outcome train(RandomProgram& program, const Way* way, int graphs, bool retain) {
  Outcome outcome;
  program.reset();
  torch::manual_seed(5);
  std::vector<Tensor> losses;
  try {
    for (int i = 0; i < graphs; ++i) {
      if (way && way->policy) {
        const auto policy = way->policy();
        TapeScope scope(*policy, way->with_offload ? &offload() : nullptr);
        losses.push_back(program.forward(way->with_recompute));
      } else {
        losses.push_back(program.forward(way && way->with_recompute));
      }
    }
    for (const auto& loss : losses) {
      if (retain) loss.backward({}, /*retain_graph=*/true);
      loss.backward();
    }
  } catch (const std::exception& error) {
    outcome.refused = true;
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
  return outcome;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  return a.sizes() == b.sizes() &&
         a.contiguous().view(torch::kInt).equal(b.contiguous().view(torch::kInt));
}

class RandomPrograms : public ::testing::TestWithParam<int> {};

// Each of these runs its share of the programs; FLEET_PROGRAMS sets how many there are in all.
constexpr int kShares = 8;

TEST_P(RandomPrograms, EqualPlain) {
  const char* wish = std::getenv("FLEET_PROGRAMS");
  const int programs = wish ? std::atoi(wish) : 3200;
  const char* only = std::getenv("FLEET_PROGRAM");
  at::set_num_threads(1);
  int accepted = 0, refused = 0, runs = 0, unseen_writes = 0, leaky = 0;
  static int64_t leaked = 0;
  const auto before = memory::replay_totals();
  const auto read_before = offload().file->statistics().bytes_read;
  for (int number = GetParam(); number < programs; number += kShares) {
    if (only && number != std::atoi(only)) continue;
    RandomProgram program(static_cast<uint64_t>(number));
    const int graphs = number % 5 == 4 ? 2 : 1;
    const bool retain = number % 7 == 6;
    const auto plain = train(program, nullptr, graphs, retain);
    plain.refused ? ++refused : ++accepted;
    for (const auto& way : ways()) {
      const auto ours = train(program, &way, graphs, retain);
      ++runs;
      // Without a tape around it, recompute() cannot see writes to its inputs after it: it says so.
      if (!way.policy && ours.why.find("changed in place after the forward") != std::string::npos) {
        ++unseen_writes;
        continue;
      }
      ASSERT_EQ(ours.refused, plain.refused)
          << "program " << number << ", " << way.name << "\nplain: " << plain.why
          << "\nours: " << ours.why << "\n"
          << program.text();
      for (size_t i = 0; i < plain.tensors.size(); ++i) {
        ASSERT_TRUE(same_bits(ours.tensors[i], plain.tensors[i]))
            << "program " << number << ", " << way.name << ", tensor " << i << "\n"
            << plain.tensors[i] << "\n"
            << ours.tensors[i] << "\n"
            << program.text();
      }
      // LibTorch itself leaks the graphs of some programs with ops in place; a tape does not.
      if (!way.policy && memory::Region::alive() != leaked) {
        leaked = memory::Region::alive();
        ++leaky;
      }
      ASSERT_EQ(memory::Region::alive(), leaked)
          << "program " << number << ", " << way.name << (plain.refused ? ", refused" : "") << "\n"
          << program.text();
    }
  }
  const auto after = memory::replay_totals();
  RecordProperty("accepted", accepted);
  RecordProperty("refused", refused);
  std::cout << accepted << " programs accepted, " << refused << " refused, " << runs << " runs, "
            << after.rebuilds - before.rebuilds << " rebuilds, " << after.ops - before.ops
            << " ops replayed, " << after.stopped_early - before.stopped_early
            << " of them stopped early\n";
  if (!only) {
    EXPECT_GT(accepted, refused / 2);
    EXPECT_LE(unseen_writes, programs / kShares / 10);
    EXPECT_LE(leaky, programs / kShares / 50);
    EXPECT_GT(after.rebuilds - before.rebuilds, runs);
    EXPECT_GT(offload().file->statistics().bytes_read - read_before, 64 * accepted);
  }
}

INSTANTIATE_TEST_SUITE_P(Shares, RandomPrograms, ::testing::Range(0, kShares));

}  // namespace
}  // namespace fleet::testing
