// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/chain_search.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace fleet::memory {
namespace {

// A way to have reached a stage. No other way there is better in bytes, now and later, and seconds.
struct Label {
  int64_t held = 0;
  int64_t offloading = 0;  // freed after one more edge
  int64_t lingering = 0;   // after two
  double seconds = 0;
  int64_t peak = 0;
  int edge = -1;
  int before = -1;  // label of the edge's first stage

  int64_t bytes() const { return held + offloading + lingering; }
};

// What a label loses in seconds against the best mix of others with its bytes: its height above the
// lower convex hull. Of paths that share a budget among many edges the best ones lie near it.
template <typename Bytes>
std::vector<double> losses_of(const std::vector<Label>& labels, Bytes bytes) {
  std::vector<size_t> order(labels.size()), hull;
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return bytes(labels[a]) != bytes(labels[b]) ? bytes(labels[a]) < bytes(labels[b])
                                                : labels[a].seconds < labels[b].seconds;
  });
  // By how much `i` is above the line through `a` and `b`.
  const auto above = [&](size_t a, size_t b, size_t i) {
    const auto width = static_cast<double>(bytes(labels[b]) - bytes(labels[a]));
    const auto part = static_cast<double>(bytes(labels[i]) - bytes(labels[a]));
    const auto rise = width > 0 ? (labels[b].seconds - labels[a].seconds) * part / width : 0;
    return labels[i].seconds - labels[a].seconds - rise;
  };
  for (const size_t i : order) {
    while (hull.size() > 1 && above(hull[hull.size() - 2], i, hull.back()) >= 0) hull.pop_back();
    hull.push_back(i);
  }
  std::vector<double> losses(labels.size(), 0);
  size_t side = 0;
  for (const size_t i : order) {
    if (side + 2 < hull.size() && bytes(labels[i]) > bytes(labels[hull[side + 1]])) ++side;
    if (side + 1 < hull.size()) losses[i] = above(hull[side], hull[side + 1], i);
  }
  return losses;
}

// Keeps the `most` that lose least, now or after what is being offloaded is freed, in their order.
// The last one, the quickest, is always among them.
void thin_out(std::vector<Label>& labels, size_t most) {
  auto losses = losses_of(labels, [](const Label& label) { return label.bytes(); });
  const bool something_leaves =
      std::ranges::any_of(labels, [](const Label& label) { return label.bytes() != label.held; });
  if (something_leaves) {
    const auto later = losses_of(labels, [](const Label& label) { return label.held; });
    for (size_t i = 0; i < losses.size(); ++i) losses[i] = std::min(losses[i], later[i]);
  }
  std::vector<size_t> chosen(labels.size() - 1);
  std::iota(chosen.begin(), chosen.end(), size_t{0});
  const auto end = chosen.begin() + static_cast<std::ptrdiff_t>(most - 1);
  std::ranges::nth_element(chosen, end, {}, [&](size_t i) { return losses[i]; });
  chosen.erase(end, chosen.end());
  std::ranges::sort(chosen);
  chosen.push_back(labels.size() - 1);
  std::vector<Label> few;
  for (const size_t i : chosen) few.push_back(labels[i]);
  labels = std::move(few);
}

// Sorted by bytes; the last one is the quickest.
void keep_best(std::vector<Label>& labels, size_t most) {
  std::ranges::sort(labels, [](const Label& a, const Label& b) {
    if (a.bytes() != b.bytes()) return a.bytes() < b.bytes();
    return a.held != b.held ? a.held < b.held : a.seconds < b.seconds;
  });
  std::vector<Label> best;
  std::map<int64_t, double> quickest;  // among those with less in all: by what stays, falling
  for (const auto& label : labels) {
    auto above = quickest.upper_bound(label.held);
    if (above != quickest.begin() && std::prev(above)->second <= label.seconds) continue;
    while (above != quickest.end() && above->second >= label.seconds) {
      above = quickest.erase(above);
    }
    quickest.insert_or_assign(label.held, label.seconds);
    best.push_back(label);
  }
  const auto is_quicker = [](const Label& a, const Label& b) { return a.seconds < b.seconds; };
  const auto first = std::ranges::min_element(best, is_quicker);
  if (first != best.end()) std::rotate(first, first + 1, best.end());
  if (best.size() > most) thin_out(best, most);
  labels = std::move(best);
}

constexpr size_t kClassesPerLabel = 8;

// Of very many ways to reach a stage, the quickest in each class of about equal bytes, and that
// with the least bytes: sorting them all would take most of the time of a search.
class ByteClasses {
 public:
  // Of bytes from `least` to `most`.
  ByteClasses(size_t count, int64_t least, int64_t most)
      : from_(least),
        per_byte_(static_cast<double>(count) / static_cast<double>(most - least + 1)),
        classes_(count) {}

  void add(int64_t bytes, double seconds, int edge, int before) {
    const Way way{.bytes = bytes, .seconds = seconds, .edge = edge, .before = before};
    if (is_less(way, least_)) least_ = way;
    const auto place = static_cast<size_t>(static_cast<double>(bytes - from_) * per_byte_);
    auto& known = classes_[std::min(place, classes_.size() - 1)];
    if (is_quicker(way, known)) known = way;
  }

  // By edge and label before it.
  std::vector<std::pair<int, int>> quickest() const {
    std::vector<std::pair<int, int>> ways;
    if (least_.edge >= 0) ways.emplace_back(least_.edge, least_.before);
    for (const auto& way : classes_) {
      if (way.edge >= 0) ways.emplace_back(way.edge, way.before);
    }
    return ways;
  }

 private:
  struct Way {
    int64_t bytes = 0;
    double seconds = 0;
    int edge = -1;
    int before = -1;
  };
  static bool is_less(const Way& a, const Way& b) {
    if (b.edge < 0 || a.bytes != b.bytes) return b.edge < 0 || a.bytes < b.bytes;
    return a.seconds < b.seconds;
  }
  static bool is_quicker(const Way& a, const Way& b) {
    if (b.edge < 0 || a.seconds != b.seconds) return b.edge < 0 || a.seconds < b.seconds;
    return a.bytes < b.bytes;
  }

  int64_t from_;
  double per_byte_;
  std::vector<Way> classes_;
  Way least_;
};

}  // namespace

ChainPath search_chain(int stages, const std::vector<ChainEdge>& edges, int64_t limit,
                       size_t max_labels, double seconds_limit) {
  std::vector<std::vector<int>> into(static_cast<size_t>(stages) + 1);
  for (size_t e = 0; e < edges.size(); ++e) {
    into[static_cast<size_t>(edges[e].to)].push_back(static_cast<int>(e));
  }
  std::vector<std::vector<Label>> at(static_cast<size_t>(stages) + 1);
  at[0].push_back({});
  // Of those that lead to a stage, as far as they fit.
  const auto for_each_extension = [&](int stage, auto&& f) {
    for (const int e : into[static_cast<size_t>(stage)]) {
      const auto& edge = edges[static_cast<size_t>(e)];
      const auto& from = at[static_cast<size_t>(edge.from)];
      for (size_t i = 0; i < from.size(); ++i) {
        if (from[i].bytes() + edge.need > limit) continue;
        if (from[i].seconds + edge.seconds > seconds_limit) continue;
        f(e, edge, i, from[i]);
      }
    }
  };
  const auto extended = [](int e, const ChainEdge& edge, size_t i, const Label& from) {
    return Label{.held = from.held + edge.held,
                 .offloading = from.lingering,
                 .lingering = edge.offloaded,
                 .seconds = from.seconds + edge.seconds,
                 .peak = std::max(from.peak, from.bytes() + edge.need),
                 .edge = e,
                 .before = static_cast<int>(i)};
  };
  const bool offloads =
      std::ranges::any_of(edges, [](const ChainEdge& edge) { return edge.offloaded > 0; });
  for (int stage = 1; stage <= stages; ++stage) {
    auto& labels = at[static_cast<size_t>(stage)];
    size_t extensions = 0;
    int64_t least = std::numeric_limits<int64_t>::max(), most = std::numeric_limits<int64_t>::min();
    for (const int e : into[static_cast<size_t>(stage)]) {
      const auto& edge = edges[static_cast<size_t>(e)];
      const auto& from = at[static_cast<size_t>(edge.from)];
      extensions += from.size();
      for (const auto& label : from) {
        least = std::min(least, label.held + edge.held);
        most = std::max(most, label.held + edge.held);
      }
    }
    if (offloads || extensions <= kClassesPerLabel * max_labels) {
      for_each_extension(stage,
                         [&](auto&&... extension) { labels.push_back(extended(extension...)); });
    } else {
      ByteClasses classes(kClassesPerLabel * max_labels, least, most);
      for_each_extension(stage, [&](int e, const ChainEdge& edge, size_t i, const Label& from) {
        classes.add(from.held + edge.held, from.seconds + edge.seconds, e, static_cast<int>(i));
      });
      for (const auto& [e, i] : classes.quickest()) {
        const auto& edge = edges[static_cast<size_t>(e)];
        const auto before = static_cast<size_t>(i);
        labels.push_back(extended(e, edge, before, at[static_cast<size_t>(edge.from)][before]));
      }
    }
    keep_best(labels, max_labels);
  }
  ChainPath path;
  const auto& last = at[static_cast<size_t>(stages)];
  if (last.empty()) return path;
  const auto* label = &last.back();  // the quickest
  path.is_feasible = true;
  path.seconds = label->seconds;
  path.peak = label->peak;
  while (label->edge >= 0) {
    path.edges.push_back(label->edge);
    const auto from = static_cast<size_t>(edges[static_cast<size_t>(label->edge)].from);
    label = &at[from][static_cast<size_t>(label->before)];
  }
  std::ranges::reverse(path.edges);
  return path;
}

}  // namespace fleet::memory
