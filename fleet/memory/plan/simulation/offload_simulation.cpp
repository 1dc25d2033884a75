// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/simulation/offload_simulation.h"

#include <algorithm>

#include "fleet/memory/offload/offloaded_storage.h"

namespace fleet::memory {

bool OffloadSimulation::may_offload(int block, int end) const {
  const auto& entry = profile_.blocks[static_cast<size_t>(block)];
  if (profile_.graph.is_kept) return false;  // what was fetched stays for the next one
  return disk_.is_known() && entry.can_offload && entry.bytes >= Offload::kMinBytes &&
         entry.dead != StepProfile::kNever &&
         std::ranges::all_of(entry.writers, [&](int writer) { return writer < end; });
}

// Storages of a segment are offloaded when the next segment has ended, or at the first cut at which
// the user's program has freed them; by the next cut they are on disk. A fetch of what was
// offloaded at one cut prefetches what was offloaded at the cut before.
std::vector<OffloadSimulation::Wave> OffloadSimulation::waves_of(
    const Plan& plan, const std::vector<int>& held_until, const std::vector<int>& asked) const {
  const auto& segments = plan.segments;
  std::vector<Wave> waves(segments.size());
  size_t segment = 0;
  for (int k = 0; k < static_cast<int>(profile_.ops.size()); ++k) {
    if (segment + 1 < segments.size() && segments[segment + 1].first_op == k) ++segment;
    if (!segments[segment].is_offloaded || segment + 1 == segments.size()) continue;
    const int end = segments[segment + 1].first_op;
    for (const int b : profile_.ops[static_cast<size_t>(k)].makes) {
      const auto& block = profile_.blocks[static_cast<size_t>(b)];
      if (held_until[static_cast<size_t>(b)] == StepProfile::kNever || !may_offload(b, end)) {
        continue;
      }
      size_t cut = segment + 2;
      while (cut < segments.size() && segments[cut].first_op < block.dead) ++cut;
      if (cut >= segments.size()) continue;  // it stays
      waves[cut].cut = segments[cut].first_op;
      waves[cut].gone = cut + 1 < segments.size() ? segments[cut + 1].first_op
                                                  : static_cast<int>(profile_.ops.size());
      waves[cut].bytes += block.bytes;
      waves[cut].asked = std::max(waves[cut].asked, asked[static_cast<size_t>(b)]);
      waves[cut].blocks.push_back(b);
    }
  }
  std::erase_if(waves, [](const Wave& wave) { return wave.blocks.empty(); });
  for (size_t w = 0; w < waves.size(); ++w) {
    waves[w].comes =
        w + 1 < waves.size() ? waves[w + 1].asked : static_cast<int>(profile_.ops.size()) - 1;
  }
  return waves;
}

double OffloadSimulation::stall_seconds(const std::vector<Wave>& waves,
                                        const std::vector<double>& replay_seconds) const {
  if (waves.empty()) return 0;
  double now = 0, stalled = 0, busy_until = 0;
  const auto wait = [&](double until) {
    stalled += std::max(until - now, 0.0);
    now = std::max(now, until);
  };
  size_t next = 0;
  for (int k = 0; k < static_cast<int>(profile_.ops.size()); ++k) {
    if (next < waves.size() && waves[next].cut == k) {
      wait(busy_until);  // until the wave before is on disk
      busy_until = now + static_cast<double>(waves[next++].bytes) / disk_.write;
    }
    now += profile_.ops[static_cast<size_t>(k)].seconds;
  }
  std::vector<double> there(waves.size(), 0);
  for (int k = static_cast<int>(profile_.ops.size()) - 1; k >= 0; --k) {
    for (size_t w = waves.size(); w-- > 0;) {
      if (waves[w].comes == k) {
        there[w] = busy_until =
            std::max(now, busy_until) + static_cast<double>(waves[w].bytes) / disk_.read;
      }
    }
    for (size_t w = 0; w < waves.size(); ++w) {
      if (waves[w].asked == k) wait(there[w]);
    }
    now += profile_.ops[static_cast<size_t>(k)].backward_seconds +
           replay_seconds[static_cast<size_t>(k)];
  }
  return stalled;
}

double OffloadSimulation::stall_seconds(int64_t bytes, double forward_seconds,
                                        double backward_seconds) const {
  return std::max(static_cast<double>(bytes) / disk_.write - forward_seconds, 0.0) +
         std::max(static_cast<double>(bytes) / disk_.read - backward_seconds, 0.0);
}

double OffloadSimulation::lost_seconds(int64_t bytes) const {
  return disk_.compute_slowdown * static_cast<double>(bytes) * (1 / disk_.write + 1 / disk_.read);
}

}  // namespace fleet::memory
