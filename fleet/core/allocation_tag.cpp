// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/allocation_tag.h"

#include <utility>

namespace fleet {
namespace {

thread_local const char* t_tag = nullptr;

}  // namespace

AllocationTag::AllocationTag(const char* name) noexcept : previous_(std::exchange(t_tag, name)) {}
AllocationTag::~AllocationTag() { t_tag = previous_; }

const char* AllocationTag::current() noexcept { return t_tag; }

}  // namespace fleet
