// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace fleet::comm {

/// The content of a store, and the effect of one request. Not thread-safe: the server's thread owns
/// it.
class StoreTable {
 public:
  /// A request that waits until `keys` are set.
  struct Wait {
    std::vector<std::string> keys;
    std::chrono::milliseconds limit{};
    bool wants_values = false;
  };
  /// Exactly one of the two.
  struct Outcome {
    std::string answer = {};
    std::optional<Wait> wait = {};
  };

  /// std::invalid_argument for a malformed request.
  Outcome handle(const std::string& request);

  bool has(const std::string& key) const { return values_.contains(key); }
  bool has_all(const std::vector<std::string>& keys) const;
  /// The answer to a wait that has ended.
  std::string answer(const Wait& wait) const;

 private:
  std::string add(const std::string& key, int64_t amount);
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);

  std::unordered_map<std::string, std::string> values_;
};

}  // namespace fleet::comm
