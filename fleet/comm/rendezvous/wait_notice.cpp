// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/wait_notice.h"

#include <algorithm>

#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {

std::string ranks_text(const std::vector<int>& ranks) {
  constexpr size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    text += format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return ranks.size() > kNamed ? text + format(" and {} more", ranks.size() - kNamed) : text;
}

void WaitNotice::log_if_due(const std::string& waits_for) {
  const auto now = Clock::now();
  if (now < next_) return;
  while (next_ <= now) next_ += every_;
  const std::chrono::duration<double> waited = now - begin_, limit = limit_;
  log::info_here(area_, format("waits for {} ({:.0f} s of {:.0f} s)", waits_for, waited.count(),
                               limit.count()));
}

std::chrono::milliseconds WaitNotice::until_next() const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_ - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

}  // namespace fleet::comm
