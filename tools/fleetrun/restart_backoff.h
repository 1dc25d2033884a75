// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace fleet::launch {

/// How long to wait before a restart: exponential backoff for attempts that
/// fail at once.
///
///   RestartBackoff pause;
///   pause.count(0.4s);
///   pause.count(0.3s);
///   pause.next();   // 1 s, then 2 s, 4 s, up to 30 s
class RestartBackoff {
 public:
  static constexpr std::chrono::seconds kAtOnce{3};
  static constexpr std::chrono::seconds kLongest{30};

  /// An attempt has failed after this time.
  void count(std::chrono::duration<double> lasted);
  /// Before the next one; 0 until two in a row have failed at once.
  std::chrono::seconds next() const;
  int in_a_row() const { return in_a_row_; }

 private:
  int in_a_row_ = 0;
};

}  // namespace fleet::launch
