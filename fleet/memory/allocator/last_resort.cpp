// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/allocator/last_resort.h"

#include <utility>
#include <vector>

namespace fleet::memory {
namespace {

thread_local std::vector<LastResortScope*> t_scopes;
thread_local bool t_is_inside = false;

}  // namespace

LastResortScope::LastResortScope(std::function<bool()> raise) : raise_(std::move(raise)) {
  t_scopes.push_back(this);
}
LastResortScope::~LastResortScope() { std::erase(t_scopes, this); }

bool LastResortScope::raise_budget() {
  if (t_is_inside || t_scopes.empty()) return false;
  struct Inside {
    Inside() { t_is_inside = true; }
    ~Inside() { t_is_inside = false; }
  } const inside;
  return t_scopes.back()->raise_();
}

}  // namespace fleet::memory
