// SPDX-License-Identifier: Apache-2.0
#pragma once

#define FMT_HEADER_ONLY 1

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace fleet::comm {

/// Thrown in the thread of a rank, which then counts as crashed.
struct SimulatedCrash {};

/// Whether ranks may still crash. Switched off only while no crash is under way, so that every
/// crash is known.
class CrashSwitch {
 public:
  bool may_crash() {
    const std::lock_guard lock(mutex_);
    if (!is_off_) ++crashing_;
    return !is_off_;
  }
  void crash_is_known() {
    const std::lock_guard lock(mutex_);
    --crashing_;
  }
  /// From here on no rank crashes; false while a crash is under way.
  bool switch_off() {
    const std::lock_guard lock(mutex_);
    is_off_ = is_off_ || crashing_ == 0;
    return is_off_;
  }
  bool is_off() const {
    const std::lock_guard lock(mutex_);
    return is_off_;
  }

 private:
  mutable std::mutex mutex_;
  bool is_off_ = false;
  int crashing_ = 0;
};

/// A rank's view of a table that makes the rank crash at its `last`th request, unless crashes are
/// switched off by then. What that request sets is lost, or, as with bytes in flight, arrives when
/// the rank is known to be lost (`arrive_late`).
class CrashingStore : public c10d::PrefixStore {
 public:
  CrashingStore(c10::intrusive_ptr<c10d::Store> table, int64_t last, CrashSwitch& crashes)
      : PrefixStore("all", std::move(table)), left_(last), crashes_(crashes) {}

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    if (left_ == 1) late_ = [this, key, value] { PrefixStore::set(key, value); };
    tick();
    PrefixStore::set(key, value);
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    tick();
    return PrefixStore::compareSet(key, expected, desired);
  }
  int64_t add(const std::string& key, int64_t value) override {
    tick();
    return PrefixStore::add(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    tick();
    return PrefixStore::check(keys);
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    tick();
    PrefixStore::wait(keys, timeout);
  }

  void arrive_late() {
    if (late_) late_();
  }

 private:
  void tick() {
    if (--left_ == 0 && crashes_.may_crash()) throw SimulatedCrash{};
  }

  int64_t left_;
  CrashSwitch& crashes_;
  std::function<void()> late_;
};

}  // namespace fleet::comm
