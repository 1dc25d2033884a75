#include "fleet/memory/chain_search.h"

#include <algorithm>
#include <map>

namespace fleet::memory {
namespace {

// A way to have reached a stage. No other way there is better in bytes, now and later, and seconds.
struct Label {
  int64_t held = 0;
  int64_t leaving = 0;    // after one more edge
  int64_t lingering = 0;  // after two
  double seconds = 0;
  int64_t peak = 0;
  int edge = -1;
  int before = -1;  // label of the edge's first stage

  int64_t bytes() const { return held + leaving + lingering; }
};

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
  if (best.size() > most) {
    // Of near neighbours the quicker one, which takes a little more memory.
    std::vector<Label> thin;
    const double step = static_cast<double>(best.size() - 1) / static_cast<double>(most - 1);
    for (size_t i = 0; i < most; ++i)
      thin.push_back(best[static_cast<size_t>(step * static_cast<double>(i))]);
    thin.back() = best.back();
    best = std::move(thin);
  }
  labels = std::move(best);
}

}  // namespace

ChainPath search_chain(int stages, const std::vector<ChainEdge>& edges, int64_t limit,
                       size_t max_labels) {
  std::vector<std::vector<int>> into(static_cast<size_t>(stages) + 1);
  for (size_t e = 0; e < edges.size(); ++e) {
    into[static_cast<size_t>(edges[e].to)].push_back(static_cast<int>(e));
  }
  std::vector<std::vector<Label>> at(static_cast<size_t>(stages) + 1);
  at[0].push_back({});
  for (int stage = 1; stage <= stages; ++stage) {
    auto& labels = at[static_cast<size_t>(stage)];
    for (const int e : into[static_cast<size_t>(stage)]) {
      const auto& edge = edges[static_cast<size_t>(e)];
      const auto& from = at[static_cast<size_t>(edge.from)];
      for (size_t i = 0; i < from.size(); ++i) {
        if (from[i].bytes() + edge.need > limit) continue;
        labels.push_back({.held = from[i].held + edge.held,
                          .leaving = from[i].lingering,
                          .lingering = edge.away,
                          .seconds = from[i].seconds + edge.seconds,
                          .peak = std::max(from[i].peak, from[i].bytes() + edge.need),
                          .edge = e,
                          .before = static_cast<int>(i)});
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
