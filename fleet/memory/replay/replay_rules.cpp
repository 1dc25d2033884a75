// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/replay/replay_rules.h"

#include <atomic>
#include <mutex>
#include <unordered_set>

namespace fleet::memory {
namespace {

std::mutex g_mutex;
std::atomic<bool> g_any = false;
std::unordered_set<std::string>& names() {
  static auto* const names = new std::unordered_set<std::string>();
  return *names;
}

}  // namespace

void never_replay(const std::vector<std::string>& ops) {
  const std::scoped_lock lock(g_mutex);
  names().insert(ops.begin(), ops.end());
  g_any = !names().empty();
}

bool may_replay(const std::string& op) {
  if (!g_any) return true;
  const std::scoped_lock lock(g_mutex);
  return !names().contains(op);
}

}  // namespace fleet::memory
