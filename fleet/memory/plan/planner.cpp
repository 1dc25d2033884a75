// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fleet/core/error.h"
#include "fleet/memory/plan/chain_search.h"
#include "fleet/memory/plan/evictable_value.h"
#include "fleet/memory/plan/plan_improvement.h"
#include "fleet/memory/plan/simulation/plan_simulation.h"

namespace fleet::memory {
namespace {

// For selective recomputation: the cheapest ops per byte first, until all of them together take
// such a fraction of the step.
constexpr double kLevels[] = {0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16};
constexpr int kLongest = 20;       // stages in one segment
constexpr double kCostly = 0.001;  // fraction of all replays that is worth a cut of its own
constexpr int64_t kWide = 3;       // times what the program holds at the next cut point
constexpr size_t kLabels = 100;    // of each stage in a search
constexpr size_t kImproved = 2;    // of the plans that a search starts from, the quickest

using OpSet = std::vector<char>;

std::vector<OpSet> levels_of(const StepProfile& profile,
                             const std::vector<EvictableValue>& values) {
  std::vector<const EvictableValue*> order;
  for (const auto& value : values) order.push_back(&value);
  std::ranges::sort(order, {}, [](const EvictableValue* value) {
    return value->seconds / static_cast<double>(value->bytes);
  });
  std::vector<OpSet> levels;
  for (const double share : kLevels) {
    OpSet level(profile.ops.size(), 0);
    double left = share * profile.plain_seconds();
    for (const auto* value : order) {
      left -= value->seconds;
      if (left < 0) break;
      for (const int op : value->ops) level[static_cast<size_t>(op)] = 1;
    }
    if (levels.empty() || levels.back() != level) levels.push_back(std::move(level));
  }
  return levels;
}

Plan empty_plan(const StepProfile& profile) {
  Plan plan;
  plan.recomputed.assign(profile.ops.size(), 0);
  for (const auto& op : profile.ops) plan.ops.push_back(op.name);
  plan.plain_seconds = profile.plain_seconds();
  return plan;
}

// Where the user's program holds least, about `stages` of them, evenly spaced by saved bytes.
std::vector<int> cut_points(const StepProfile& profile, const PlanSimulation& simulation,
                            int stages) {
  const auto n = static_cast<int>(profile.ops.size());
  const auto share = std::max<int64_t>(profile.saved_bytes() / std::max(stages, 1), 1);
  std::vector<int> places{0};
  int next = 1;
  while (next < n) {
    const auto from = simulation.saved_before(places.back());
    int best = -1;
    for (; next < n; ++next) {
      const auto saved = simulation.saved_before(next) - from;
      if (saved < share / 2 || simulation.has_in_place_constraint(next)) continue;
      if (best >= 0 && saved > 2 * share) break;
      if (best < 0 || simulation.alive_before(next) < simulation.alive_before(best)) best = next;
    }
    if (best < 0) break;
    places.push_back(best);
    next = best + 1;
  }
  return places;
}

// Behind an op whose result no backward needs, such as a linear layer before a dropout: a segment
// that ends there does not replay it, while one that ends a little later has to. `points` in
// order.
std::vector<int> places_after_costly_ops(const StepProfile& profile,
                                         const PlanSimulation& simulation,
                                         const std::vector<int>& points) {
  std::vector<char> is_saved(profile.blocks.size(), 0);
  double all = 0;
  for (const auto& op : profile.ops) {
    all += op.replay_seconds;
    for (const int block : op.saves) is_saved[static_cast<size_t>(block)] = 1;
  }
  std::vector<int> places;
  for (int k = 0; k + 1 < static_cast<int>(profile.ops.size()); ++k) {
    if (simulation.has_in_place_constraint(k + 1)) continue;
    const auto& op = profile.ops[static_cast<size_t>(k)];
    const bool is_needed = std::ranges::any_of(
        op.makes, [&](int block) { return is_saved[static_cast<size_t>(block)] != 0; });
    if (is_needed || op.makes.empty() || op.replay_seconds < kCostly * all) continue;
    auto near = std::ranges::upper_bound(points, k);
    if (near == points.end()) --near;
    if (simulation.alive_before(k + 1) > kWide * simulation.alive_before(*near)) continue;
    places.push_back(k + 1);
  }
  return places;
}

// All places for cuts, in order, `points` among them.
std::vector<int> cuts_with(const StepProfile& profile, const PlanSimulation& simulation,
                           const std::vector<int>& points, int stages) {
  auto cuts = points;
  for (const auto& more : {places_after_costly_ops(profile, simulation, points),
                           cut_points(profile, simulation, stages)}) {
    cuts.insert(cuts.end(), more.begin(), more.end());
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

struct Choice {
  bool is_dropped = false;
  size_t level = 0;
  bool is_offloaded = false;
};

class Search {
 public:
  Search(const StepProfile& profile, const PlanOptions& options)
      : profile_(profile),
        options_(options),
        simulation_(profile, options.disk),
        cut_points_(cut_points(profile, simulation_, options.stages / 3)),
        cuts_(cuts_with(profile, simulation_, cut_points_, options.stages)),
        values_(evictable_values(profile)),
        levels_(levels_of(profile, values_)) {
    for (int i = 0; i < stages(); ++i) {
      add_kept(i, i + 1);
      for (int j = i + 1; j <= std::min(stages(), i + kLongest); ++j) add_dropped(i, j);
    }
    // Longer intervals between cut points, without the cuts inside.
    const auto points = stages_at(cut_points_);
    for (size_t i = 0; i + 1 < points.size(); ++i) {
      if (points[i + 1] > points[i] + 1) add_kept(points[i], points[i + 1]);
      for (size_t j = i + 1; j < std::min(points.size(), i + 1 + kLongest); ++j) {
        if (points[j] > points[i] + kLongest) add_dropped(points[i], points[j]);
      }
    }
  }

  int stages() const { return static_cast<int>(cuts_.size()); }
  PlanImprovement improvement(int64_t budget) const {
    return {profile_, simulation_, values_, budget};
  }

  // The quickest plan whose edges predict no more than `limit`.
  std::optional<Plan> within(int64_t limit) const {
    // A rough path first: slower ones need not be followed.
    const auto rough = search_chain(stages(), edges_, limit, /*max_labels=*/8);
    const double bound =
        rough.is_feasible ? rough.seconds : std::numeric_limits<double>::infinity();
    return plan_of(search_chain(stages(), edges_, limit, kLabels, bound));
  }

  std::optional<Plan> plan_of(const ChainPath& path) const {
    if (!path.is_feasible) return std::nullopt;
    auto plan = empty_plan(profile_);
    for (const int e : path.edges) {
      const auto& edge = edges_[static_cast<size_t>(e)];
      const auto& choice = choices_[static_cast<size_t>(e)];
      // Neighbours that are kept are one segment.
      const auto stays = [](const auto& one) { return !one.is_dropped && !one.is_offloaded; };
      const bool joins = !plan.segments.empty() && stays(choice) && stays(plan.segments.back());
      if (!joins) {
        plan.segments.push_back({.first_op = cuts_[static_cast<size_t>(edge.from)],
                                 .is_dropped = choice.is_dropped,
                                 .is_offloaded = choice.is_offloaded});
      }
      for (int k = cuts_[static_cast<size_t>(edge.from)]; k < end_of(edge.to); ++k) {
        plan.recomputed[static_cast<size_t>(k)] = levels_[choice.level][static_cast<size_t>(k)];
      }
    }
    plan.budget = options_.budget;
    simulation_.predict_into(plan);
    return plan;
  }

  // Each edge is predicted by itself: the limit is corrected by the prediction for the whole plan.
  std::optional<Plan> best() const {
    std::optional<Plan> best;
    int64_t limit = options_.budget - profile_.base;
    int64_t low = 0, high = 0;  // limits known to be within, and above, the budget
    for (int round = 0; round < 12; ++round) {
      auto plan = within(limit);
      const bool fits = plan && plan->predicted_peak <= options_.budget;
      if (fits && (!best || plan->predicted_seconds < best->predicted_seconds)) best = plan;
      if (fits) {
        low = std::max(low, limit);
        if (plan->predicted_peak > options_.budget - options_.budget / 200) break;
        limit = high ? (low + high) / 2 : limit + (options_.budget - plan->predicted_peak);
      } else if (plan) {
        high = high ? std::min(high, limit) : limit;
        limit = low ? (low + high) / 2 : limit - (plan->predicted_peak - options_.budget);
      } else {  // the edges predict too much
        if (high && low >= high) break;
        low = std::max(low, limit);
        limit = high ? (low + high) / 2 : limit + limit / 8 + 1;
      }
      if (high && high - low < options_.budget / 1000) break;
    }
    return best;
  }

  // By the least limit that some path keeps. Where time does not count, few ways to reach a
  // stage are worth following, so that none has to be left out and the search is short.
  Plan least() const {
    auto timeless = edges_;
    for (auto& edge : timeless) edge.seconds = 0;
    auto least = keep_everything(profile_);
    const auto consider = [&](const std::optional<Plan>& plan) {
      if (plan && plan->predicted_peak < least.predicted_peak) least = *plan;
    };
    int64_t low = 0, high = least.predicted_peak;
    while (high - low > std::max<int64_t>(high / 500, 1)) {
      const auto middle = low + (high - low) / 2;
      const auto path = search_chain(stages(), timeless, middle);
      consider(plan_of(path));
      (path.is_feasible ? high : low) = middle;
    }
    // Each edge is predicted by itself: with a little more, a whole plan may take less.
    for (const int64_t percent : {0, 3, 8, 15, 25, 40}) {
      consider(within(high + high * percent / 100));
    }
    return least;
  }

 private:
  int end_of(int stage) const {
    return stage < stages() ? cuts_[static_cast<size_t>(stage)]
                            : static_cast<int>(profile_.ops.size());
  }

  void add_kept(int from, int to) {
    for (size_t level = 0; level < levels_.size(); ++level) add(from, to, {false, level});
  }
  void add_dropped(int from, int to) {
    for (size_t level = 0; level < levels_.size(); level += 2) add(from, to, {true, level});
  }
  // Of places among the cuts, and the end.
  std::vector<int> stages_at(const std::vector<int>& places) const {
    std::vector<int> stages;
    stages.reserve(places.size() + 1);
    for (const int place : places) {
      stages.push_back(static_cast<int>(std::ranges::lower_bound(cuts_, place) - cuts_.begin()));
    }
    stages.push_back(this->stages());
    return stages;
  }

  void add(int from, int to, Choice choice) {
    const auto interval = simulation_.interval(cuts_[static_cast<size_t>(from)], end_of(to),
                                               choice.is_dropped, levels_[choice.level]);
    ChainEdge edge{.from = from,
                   .to = to,
                   .held = interval.held,
                   .need = interval.need,
                   .seconds = interval.seconds};
    // No better than the one before it, which recomputes less.
    const bool is_first = choice.level == 0;
    if (!is_first && last_.held <= edge.held && last_.need <= edge.need) return;
    last_ = edge;
    if (choice.is_dropped && interval.seconds == 0)
      return;  // nothing is replayed: the same as kept
    edges_.push_back(edge);
    choices_.push_back(choice);
    if (interval.may_offload == 0) return;
    edge.held -= interval.may_offload;
    edge.offloaded = interval.may_offload;
    edge.seconds += interval.offload_seconds;
    choice.is_offloaded = true;
    edges_.push_back(edge);
    choices_.push_back(choice);
  }

  const StepProfile& profile_;
  PlanOptions options_;
  PlanSimulation simulation_;
  std::vector<int> cut_points_;  // few, where the program holds very little
  std::vector<int> cuts_;
  std::vector<EvictableValue> values_;
  std::vector<OpSet> levels_;
  std::vector<ChainEdge> edges_;
  std::vector<Choice> choices_;
  ChainEdge last_;  // of those over the same stages, without offload
};

}  // namespace

std::vector<int> find_cuts(const StepProfile& profile, int stages) {
  const PlanSimulation simulation(profile);
  return cuts_with(profile, simulation, cut_points(profile, simulation, stages / 3), stages);
}

Plan keep_everything(const StepProfile& profile) {
  auto plan = empty_plan(profile);
  plan.segments.push_back({});
  PlanSimulation(profile).predict_into(plan);
  plan.plain_peak = plan.predicted_peak;
  return plan;
}

Plan least_memory(const StepProfile& profile, const PlanOptions& options) {
  // More cuts are not always better: what is offloaded stays resident for some more segments,
  // however short. And with more choices the search may miss the best.
  auto few = options;
  few.stages = options.stages / 3;
  const Search search(profile, options);
  auto least = search.least();
  const auto consider = [&](Plan other) {
    if (other.predicted_peak < least.predicted_peak) least = std::move(other);
  };
  consider(Search(profile, few).least());
  if (options.disk.is_known()) {
    consider(least_memory(profile, {.budget = options.budget, .stages = options.stages}));
  } else {
    auto improvement = search.improvement(options.budget);
    const auto plain = keep_everything(profile);
    for (const auto& start : {plain, least}) {
      consider(improvement.least(start));
    }
  }
  return least;
}

Plan recompute_between_checkpoints(const StepProfile& profile) {
  auto plan = keep_everything(profile);
  for (const int op : profile.checkpoints) {
    if (op == plan.segments.back().first_op || op >= static_cast<int>(profile.ops.size())) continue;
    if (profile.ops[static_cast<size_t>(op)].is_inside_recompute) continue;
    plan.segments.back().is_dropped = true;
    plan.segments.push_back({.first_op = op});
  }
  PlanSimulation(profile).predict_into(plan);
  return plan;
}

std::optional<Plan> make_plan(const StepProfile& profile, const PlanOptions& options) {
  auto plain = keep_everything(profile);
  plain.budget = options.budget;
  if (plain.predicted_peak <= options.budget) return plain;
  const Search search(profile, options);
  std::vector<Plan> starts{plain};
  // Close to the least, the corrected limits may miss it.
  auto found = search.best();
  starts.push_back(found ? std::move(*found) : least_memory(profile, options));
  // Plans that offload are predicted less exactly after an improvement.
  if (options.disk.is_known()) {
    auto plan = starts.back();
    if (plan.predicted_peak > options.budget) return std::nullopt;
    plan.budget = options.budget;
    plan.plain_peak = plain.predicted_peak;
    return plan;
  }
  // With room for more than there is, fewer segments are recomputed: single values instead may be
  // cheaper.
  const auto room = options.budget - profile.base;
  for (const int64_t percent : {15, 40}) {
    if (auto plan = search.within(room + room * percent / 100)) starts.push_back(std::move(*plan));
  }
  auto improvement = search.improvement(options.budget);
  std::vector<Plan> fitting;
  for (const auto& start : starts) {
    if (auto plan = improvement.fitted(start)) fitting.push_back(std::move(*plan));
  }
  std::ranges::sort(fitting, {}, &Plan::predicted_seconds);
  if (fitting.size() > kImproved) fitting.erase(fitting.begin() + kImproved, fitting.end());
  std::optional<Plan> best;
  for (const auto& start : fitting) {
    auto other = improvement.improve(start);
    if (other && (!best || other->predicted_seconds < best->predicted_seconds)) best = other;
  }
  if (!best) return best;
  best->budget = options.budget;
  best->plain_peak = plain.predicted_peak;
  return best;
}

}  // namespace fleet::memory
