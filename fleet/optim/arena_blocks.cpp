#include "fleet/optim/arena_blocks.h"

#include <algorithm>

#include "fleet/core/error.h"
#include "fleet/ops/parallel_shares.h"

namespace fleet::optim {
namespace {

constexpr int64_t kBlockElements = 16 * 1024;
constexpr int64_t kBatchElements = 256 * 1024;  // of four arrays: 4 MiB
constexpr int64_t kShareElements = 8 * 1024;    // less is not worth waking a thread

}  // namespace

bool is_fused(const ArenaGroup& group) {
  return group.values.device().is_cpu() && group.values.scalar_type() == torch::kFloat;
}

void ArenaBlocks::choose(const std::vector<bool>& used) {
  if (used == used_ && !groups_.empty()) return;
  FLEET_ASSERT(used.size() == arena_.spans().size(), "one flag per span");
  used_ = used;
  blocks_.clear();
  groups_.clear();
  batches_.clear();
  elements_before_.assign(1, 0);
  for (const auto& group : arena_.groups()) {
    const size_t first = blocks_.size();
    std::vector<Batch> batches;
    for (size_t i = group.first_span; i < group.last_span; ++i) {
      if (!used[i] || arena_.spans()[i].numel == 0) continue;
      if (batches.empty() ||
          elements_before_.back() - elements_before_[batches.back().first] >= kBatchElements) {
        batches.push_back({blocks_.size(), blocks_.size()});
      }
      const auto& span = arena_.spans()[i];
      for (int64_t done = 0; done < span.numel; done += kBlockElements) {
        const int64_t length = std::min(kBlockElements, span.numel - done);
        blocks_.push_back({i, span.offset + done, length});
        elements_before_.push_back(elements_before_.back() + length);
      }
      batches.back().last = blocks_.size();
    }
    groups_.push_back({first, blocks_.size()});
    batches_.push_back(std::move(batches));
  }
}

void ArenaBlocks::for_each(const Batch& batch, const std::function<void(size_t)>& work) const {
  const int64_t begin = elements_before_[batch.first];
  const int64_t total = elements_before_[batch.last] - begin;
  const int64_t shares =
      std::clamp<int64_t>(total / kShareElements, 1, std::max<int64_t>(1, ops::share_count()));
  const auto cut = [&](int64_t share) {
    const auto first = elements_before_.begin() + static_cast<std::ptrdiff_t>(batch.first);
    const auto last = elements_before_.begin() + static_cast<std::ptrdiff_t>(batch.last);
    return static_cast<size_t>(std::lower_bound(first, last, begin + total * share / shares) -
                               elements_before_.begin());
  };
  ops::parallel_shares(shares, [&](int64_t share) {
    const size_t last = cut(share + 1);
    for (size_t i = cut(share); i < last; ++i) work(i);
  });
}

}  // namespace fleet::optim
