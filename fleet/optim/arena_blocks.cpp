#include "fleet/optim/arena_blocks.h"

#include <algorithm>
#include <optional>

#include "fleet/core/error.h"
#include "fleet/core/parallel_shares.h"

namespace fleet::optim {
namespace {

constexpr int64_t kBlockElements = 16 * 1024;
constexpr int64_t kTogetherElements = 1'000'000;  // all threads on one span at a time
constexpr int64_t kShareElements = 8 * 1024;      // less is not worth waking a thread

}  // namespace

bool is_fused(const ArenaGroup& group) {
  return group.values.device().is_cpu() && group.values.scalar_type() == torch::kFloat;
}

bool ArenaBlocks::choose(const std::vector<bool>& used) {
  if (used == used_ && !groups_.empty()) return false;
  FLEET_ASSERT(used.size() == arena_.spans().size(), "one flag per span");
  used_ = used;
  blocks_.clear();
  groups_.clear();
  elements_before_.assign(1, 0);
  for (const auto& group : arena_.groups()) {
    const size_t first = blocks_.size();
    for (size_t i = group.first_span; i < group.last_span; ++i) {
      if (!used[i]) continue;
      const auto& span = arena_.spans()[i];
      for (int64_t done = 0; done < span.numel; done += kBlockElements) {
        const int64_t length = std::min(kBlockElements, span.numel - done);
        blocks_.push_back({i, span.offset + done, length});
        elements_before_.push_back(elements_before_.back() + length);
      }
    }
    groups_.push_back({first, blocks_.size()});
  }
  return true;
}

std::vector<ArenaBlocks::Stretch> ArenaBlocks::shares_of(const Stretch& stretch) const {
  const int64_t begin = elements_before_[stretch.first];
  const int64_t total = elements_before_[stretch.last] - begin;
  const int64_t count =
      std::clamp<int64_t>(total / kShareElements, 1, std::max<int64_t>(1, share_count()));
  std::vector<Stretch> shares;
  size_t first = stretch.first;
  for (int64_t share = 1; share <= count; ++share) {
    const auto from = elements_before_.begin() + static_cast<std::ptrdiff_t>(stretch.first);
    const auto to = elements_before_.begin() + static_cast<std::ptrdiff_t>(stretch.last);
    const auto cut = std::lower_bound(from, to, begin + total * share / count);
    const auto last = static_cast<size_t>(cut - elements_before_.begin());
    if (first < last) shares.push_back({first, last});  // there may be fewer blocks than shares
    first = last;
  }
  return shares;
}

ArenaBlocks::Stretch ArenaBlocks::span_around(const Stretch& stretch, size_t block) const {
  Stretch result{block, block + 1};
  while (result.first > stretch.first && blocks_[result.first - 1].span == blocks_[block].span)
    --result.first;
  while (result.last < stretch.last && blocks_[result.last].span == blocks_[block].span)
    ++result.last;
  return result;
}

void ArenaBlocks::for_each(const Stretch& stretch, const std::function<void(size_t)>& work) const {
  const auto shares = shares_of(stretch);
  parallel_shares(static_cast<int64_t>(shares.size()), [&](int64_t share) {
    const auto& own = shares[static_cast<size_t>(share)];
    for (size_t i = own.first; i < own.last; ++i) work(i);
  });
}

void ArenaBlocks::for_each(const Stretch& stretch, const TwoPasses& work) const {
  Stretch phase{stretch.first, stretch.first};
  for (size_t i = stretch.first; i < stretch.last;) {
    const auto span = span_around(stretch, i);
    i = span.last;
    if (elements_before_[span.last] - elements_before_[span.first] >= kTogetherElements) {
      if (phase.first < phase.last) for_each_together(phase, work);
      for_each_together(span, work);
      phase = {span.last, span.last};
    } else {
      phase.last = span.last;
    }
  }
  if (phase.first < phase.last) for_each_together(phase, work);
}

void ArenaBlocks::for_each_together(const Stretch& stretch, const TwoPasses& work) const {
  const auto shares = shares_of(stretch);
  const auto for_each_share =
      [&](const std::function<void(const Stretch&, const Stretch&)>& visit) {
        parallel_shares(static_cast<int64_t>(shares.size()), [&](int64_t share) {
          const auto& own = shares[static_cast<size_t>(share)];
          for (size_t i = own.first; i < own.last;) {
            const auto span = span_around(stretch, i);
            const Stretch part{i, std::min(span.last, own.last)};
            visit(span, part);
            i = part.last;
          }
        });
      };
  const auto is_whole = [](const Stretch& span, const Stretch& part) {
    return part.first == span.first && part.last == span.last;
  };
  // Backwards: what was measured last is the likeliest to be in the cache still.
  const auto apply = [&](const Stretch& part) {
    for (size_t i = part.last; i-- > part.first;) work.apply(i);
  };
  for_each_share([&](const Stretch& span, const Stretch& part) {
    for (size_t i = part.first; i < part.last; ++i) work.measure(i);
    if (!is_whole(span, part)) return;
    work.settle(span.first, span.last);
    apply(part);
  });
  std::optional<size_t> torn;  // first block of the last span that crosses a border
  for (const auto& share : shares) {
    const auto span = span_around(stretch, share.first);
    if (span.first == share.first || torn == span.first) continue;
    work.settle(span.first, span.last);
    torn = span.first;
  }
  if (!torn) return;
  for_each_share([&](const Stretch& span, const Stretch& part) {
    if (!is_whole(span, part)) apply(part);
  });
}

}  // namespace fleet::optim
