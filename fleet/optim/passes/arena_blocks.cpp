// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/passes/arena_blocks.h"

#include <algorithm>
#include <optional>

#include "fleet/core/error.h"
#include "fleet/core/parallel_chunks.h"

namespace fleet::optim {
namespace {

constexpr int64_t kBlockElements = int64_t{16} * 1024;
constexpr int64_t kTogetherElements = 1'000'000;       // all threads on one span at a time
constexpr int64_t kChunkElements = int64_t{8} * 1024;  // less is not worth waking a thread

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

std::vector<ArenaBlocks::BlockRange> ArenaBlocks::chunks_of(const BlockRange& range) const {
  const int64_t begin = elements_before_[range.first];
  const int64_t total = elements_before_[range.last] - begin;
  const int64_t count =
      std::clamp<int64_t>(total / kChunkElements, 1, std::max<int64_t>(1, chunk_count()));
  std::vector<BlockRange> chunks;
  size_t first = range.first;
  for (int64_t chunk = 1; chunk <= count; ++chunk) {
    const auto from = elements_before_.begin() + static_cast<std::ptrdiff_t>(range.first);
    const auto to = elements_before_.begin() + static_cast<std::ptrdiff_t>(range.last);
    const auto cut = std::lower_bound(from, to, begin + total * chunk / count);
    const auto last = static_cast<size_t>(cut - elements_before_.begin());
    if (first < last) chunks.push_back({first, last});  // there may be fewer blocks than chunks
    first = last;
  }
  return chunks;
}

ArenaBlocks::BlockRange ArenaBlocks::span_around(const BlockRange& range, size_t block) const {
  BlockRange result{block, block + 1};
  while (result.first > range.first && blocks_[result.first - 1].span == blocks_[block].span)
    --result.first;
  while (result.last < range.last && blocks_[result.last].span == blocks_[block].span)
    ++result.last;
  return result;
}

void ArenaBlocks::for_each(const BlockRange& range, const std::function<void(size_t)>& work) const {
  const auto chunks = chunks_of(range);
  parallel_chunks(static_cast<int64_t>(chunks.size()), [&](int64_t chunk) {
    const auto& own = chunks[static_cast<size_t>(chunk)];
    for (size_t i = own.first; i < own.last; ++i) work(i);
  });
}

void ArenaBlocks::for_each(const BlockRange& range, const TwoPasses& work) const {
  BlockRange phase{range.first, range.first};
  for (size_t i = range.first; i < range.last;) {
    const auto span = span_around(range, i);
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

void ArenaBlocks::for_each_together(const BlockRange& range, const TwoPasses& work) const {
  const auto chunks = chunks_of(range);
  const auto for_each_chunk =
      [&](const std::function<void(const BlockRange&, const BlockRange&)>& visit) {
        parallel_chunks(static_cast<int64_t>(chunks.size()), [&](int64_t chunk) {
          const auto& own = chunks[static_cast<size_t>(chunk)];
          for (size_t i = own.first; i < own.last;) {
            const auto span = span_around(range, i);
            const BlockRange part{i, std::min(span.last, own.last)};
            visit(span, part);
            i = part.last;
          }
        });
      };
  const auto is_whole = [](const BlockRange& span, const BlockRange& part) {
    return part.first == span.first && part.last == span.last;
  };
  // Backwards: what was measured last is the likeliest to be in the cache still.
  const auto apply = [&](const BlockRange& part) {
    for (size_t i = part.last; i-- > part.first;) work.apply(i);
  };
  for_each_chunk([&](const BlockRange& span, const BlockRange& part) {
    for (size_t i = part.first; i < part.last; ++i) work.measure(i);
    if (!is_whole(span, part)) return;
    work.reduce(span.first, span.last);
    apply(part);
  });
  std::optional<size_t> torn;  // first block of the last span that crosses a border
  for (const auto& chunk : chunks) {
    const auto span = span_around(range, chunk.first);
    if (span.first == chunk.first || torn == span.first) continue;
    work.reduce(span.first, span.last);
    torn = span.first;
  }
  if (!torn) return;
  for_each_chunk([&](const BlockRange& span, const BlockRange& part) {
    if (!is_whole(span, part)) apply(part);
  });
}

}  // namespace fleet::optim
