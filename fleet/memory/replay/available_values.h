// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

#include <torch/types.h>

#include "fleet/memory/tape/kept_value.h"

namespace fleet::memory {

/// What a replay of a region can start from inside of it: values that are resident at a version.
/// Holds their tensors, so that none of them is evicted meanwhile.
class AvailableValues {
 public:
  using Source = std::function<std::shared_ptr<KeptValue>(int value, uint32_t version)>;

  AvailableValues() = default;
  /// Values are looked up when they are asked for; `source` returns null for none.
  explicit AvailableValues(Source source) : source_(std::move(source)), looks_up_(true) {}

  /// A value that is resident and intact; views are left out.
  void add(const std::shared_ptr<KeptValue>& kept) {
    const auto& origin = kept->origin();
    if (origin.value >= 0 && !origin.is_view) put(origin.value, origin.version, kept);
  }
  /// Whether its values belong to others too, so that no replay may write to them.
  bool are_shared() const { return looks_up_; }
  /// From now on nothing is looked up: what the replay itself refills stays out.
  void freeze() { source_ = nullptr; }

  /// Null for none.
  KeptValue* find(int value, uint32_t version) {
    const auto place = values_.find(key(value, version));
    if (place != values_.end()) return place->second.kept.get();
    if (!source_) return nullptr;
    return put(value, version, source_(value, version));
  }

 private:
  struct Entry {
    std::shared_ptr<KeptValue> kept;
    torch::Tensor tensor;
  };
  static uint64_t key(int value, uint32_t version) {
    return (static_cast<uint64_t>(value) << 32U) | version;
  }
  KeptValue* put(int value, uint32_t version, std::shared_ptr<KeptValue> kept) {
    auto tensor = kept ? kept->tensor() : torch::Tensor();
    auto* const found = kept.get();
    values_.insert_or_assign(key(value, version),
                             Entry{.kept = std::move(kept), .tensor = std::move(tensor)});
    return found;
  }

  Source source_;
  bool looks_up_ = false;
  std::unordered_map<uint64_t, Entry> values_;
};

}  // namespace fleet::memory
