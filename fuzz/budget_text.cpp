// SPDX-License-Identifier: Apache-2.0
// "12GiB", "60%", "50% of plain": memory budgets of flags and strategy files.

#include "fleet/core/text/byte_size.h"
#include "fleet/memory/allocator/budget_amount.h"

#include "fuzz/target.h"

namespace fleet::fuzz {
namespace {

using memory::BudgetAmount;

constexpr int64_t kMost = int64_t{1} << 62;  // above, a double no longer counts in hundredths

void run(Bytes bytes) {
  const auto amount = BudgetAmount::parse(text_of(bytes));
  if (!amount) return;
  const MemoryLimit limit{.bytes = int64_t{64} << 30, .source = "this machine"};
  const int64_t in_bytes = amount->of(limit, 3);
  require(!amount->derivation(limit, 3).empty(), "a budget says where it comes from");
  if (amount->unit != BudgetAmount::Unit::kBytes) {
    require(amount->fraction > 0 && amount->fraction <= 1, "a share is above 0 and at most 1");
    require(in_bytes >= 0 && in_bytes <= limit.bytes / 3, "a share is a part of what there is");
    return;
  }
  require(amount->bytes > 0 && in_bytes == amount->bytes, "bytes are what was written");
  require(byte_size(text_of(bytes)) == amount->bytes, "a budget in bytes is a size");
  if (amount->bytes > kMost) return;
  const auto again = BudgetAmount::parse(memory::budget_text(amount->bytes));
  require(again && again->bytes >= amount->bytes, "its text stands for at least as many bytes");
  require(static_cast<double>(again->bytes) <= 1.02 * static_cast<double>(amount->bytes) + 1,
          "and for hardly more");
}

const Target target("budget_text", run);

}  // namespace
}  // namespace fleet::fuzz
