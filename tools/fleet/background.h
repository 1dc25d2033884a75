// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace fleet::tool {

/// Runs a call that may hang (a name server, a network disk) in a detached thread: `body` must own
/// everything that it uses.
///
///   Background<std::string> name([host] { return resolve(host); });
///   const auto found = name.get_until(deadline);   // nothing when it was not done by then
template <typename Result>
class Background {
 public:
  template <typename Body>
  explicit Background(Body body) {
    auto promise = std::make_shared<std::promise<Result>>();
    future_ = promise->get_future();
    std::thread([promise, body = std::move(body)]() mutable {
      try {
        promise->set_value(body());
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    }).detach();
  }

  /// Throws what `body` threw. Once only.
  std::optional<Result> get_until(std::chrono::steady_clock::time_point deadline) {
    if (future_.wait_until(deadline) != std::future_status::ready) return std::nullopt;
    return future_.get();
  }

 private:
  std::future<Result> future_;
};

}  // namespace fleet::tool
