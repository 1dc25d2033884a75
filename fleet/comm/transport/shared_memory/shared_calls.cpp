// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/transport/shared_memory/shared_calls.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "fleet/comm/transport/shared_memory/shared_sums.h"
#include "fleet/core/process/process_setup.h"
#include "fleet/core/text/format.h"
#include "fleet/core/xx_hash64.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kSlots = 8;
constexpr int64_t kAlignment = 64;
constexpr auto kEndedCheckInterval = 50ms;  // between two checks whether a peer is alive
// About 30 microseconds, the time that the kernel takes to put a thread to sleep and wake it up.
constexpr int kSpins = 1000;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// What a rank sends: an all-gather has a tensor for the result too.
size_t sent_tensors(const Collective& call) {
  return call.kind == Collective::Kind::kAllGather ? 1 : call.tensors.size();
}

int64_t sent_bytes(const Collective& call) {
  int64_t bytes = 0;
  for (size_t i = 0; i < sent_tensors(call); ++i) {
    bytes += aligned(static_cast<int64_t>(call.tensors[i].nbytes()));
  }
  return bytes;
}

// Equal on ranks that make the same call.
uint64_t signature_of(const Collective& call) {
  c10::SmallVector<int64_t, 16> parts = {static_cast<int64_t>(call.kind),
                                         static_cast<int64_t>(call.op), call.root};
  for (size_t i = 0; i < sent_tensors(call); ++i) {
    parts.push_back(static_cast<int64_t>(call.tensors[i].scalar_type()));
    parts.push_back(call.tensors[i].numel());
  }
  return XxHash64::of(parts.data(), parts.size() * sizeof(parts[0]));
}

// An empty tensor has no address.
void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

struct SharedCalls::Control {
  alignas(64) SharedCounter posted;            // calls whose input of this rank is in its slot
  alignas(64) SharedCounter finished;          // calls whose inputs this rank has read
  alignas(64) std::atomic<uint32_t> has_left;  // this rank's part of the group has been closed, or
                                               // has failed
};

struct SharedCalls::Slot {
  uint64_t signature;
  alignas(kAlignment) char data[kSlotBytes];
};

int64_t SharedCalls::memory_bytes() {
  return static_cast<int64_t>(sizeof(Control) + kSlots * sizeof(Slot));
}

SharedCalls::SharedCalls(PeerMemory memory, int rank)
    : memory_(std::move(memory)),
      rank_(rank),
      spins_(memory_.size() <= available_cores() ? kSpins : 0) {}

SharedCalls::~SharedCalls() { leave(); }

SharedCalls::Control& SharedCalls::control(int rank) const {
  return *reinterpret_cast<Control*>(memory_.of(rank));
}

SharedCalls::Slot& SharedCalls::slot(int rank, uint32_t number) const {
  return reinterpret_cast<Slot*>(memory_.of(rank) + sizeof(Control))[number % kSlots];
}

bool SharedCalls::accepts(const Collective& call) {
  const bool on_cpu = std::all_of(call.tensors.begin(), call.tensors.end(),
                                  [](const torch::Tensor& tensor) { return tensor.is_cpu(); });
  return on_cpu && call.kind != Collective::Kind::kAdmit && sent_bytes(call) <= kSlotBytes;
}

// Returns with the call posted, so that no other rank ever waits for this one to come back to a
// call that it has started: it may wait elsewhere meanwhile, in a socket or another group.
uint32_t SharedCalls::start(Collective call, Clock::time_point deadline,
                            const std::function<void()>& while_waiting) {
  std::unique_lock lock(mutex_);
  const uint32_t number = ++started_;
  try {
    while (failure_.empty()) {
      const auto missing = find_missing(number);
      if (!missing) {
        post(call, number);
        calls_.push_back(std::move(call));
        posted_ = number;
        advance();
        break;
      }
      lock.unlock();
      pause(*missing, deadline);
      while_waiting();
      lock.lock();
    }
  } catch (const std::exception&) {  // NOLINT: `failure_` has it, for `wait`
  }
  return number;
}

// What call `number` waits for before it may be posted: earlier calls, and ranks that still read
// its slot.
std::optional<SharedCalls::Missing> SharedCalls::find_missing(uint32_t number) {
  const auto missing = advance();
  if (!is_done(number - kSlots) && missing.counter != nullptr) return missing;
  if (const auto reader = behind(&Control::finished, number - kSlots)) return reader;
  if (posted_ + 1 == number) return std::nullopt;
  return Missing{&control(rank_).posted, rank_, number - 1};  // started by another thread
}

bool SharedCalls::is_complete(uint32_t number) {
  const std::lock_guard lock(mutex_);
  try {
    if (failure_.empty()) advance();
  } catch (const std::exception&) {  // NOLINT: `failure_` has it, for `wait`
  }
  return is_done(number) || !failure_.empty();
}

void SharedCalls::wait(uint32_t number, Clock::time_point deadline,
                       const std::function<void()>& while_waiting) {
  while (true) {
    Missing missing{};
    {
      const std::lock_guard lock(mutex_);
      if (is_done(number)) return;
      if (!failure_.empty()) throw std::runtime_error(failure_);
      missing = advance();
      if (is_done(number)) return;
    }
    pause(missing, deadline);
    while_waiting();
  }
}

// The first rank whose counter has not reached `number`.
std::optional<SharedCalls::Missing> SharedCalls::behind(SharedCounter Control::*which,
                                                        uint32_t number) const {
  for (int rank = 0; rank < memory_.size(); ++rank) {
    auto& counter = control(rank).*which;
    if (!counter.has_reached(number)) return Missing{&counter, rank, number};
  }
  return std::nullopt;
}

// Completes what can be; returns what the oldest call waits for, if there is one.
SharedCalls::Missing SharedCalls::advance() {
  while (completed_ != posted_) {
    if (const auto missing = behind(&Control::posted, completed_ + 1)) return *missing;
    complete(calls_.front(), completed_ + 1);
    calls_.pop_front();
    ++completed_;
  }
  return {};
}

void SharedCalls::post(const Collective& call, uint32_t number) {
  auto& own = slot(rank_, number);
  own.signature = signature_of(call);
  const bool sends = call.kind != Collective::Kind::kBroadcast || call.root == rank_;
  char* to = own.data;
  for (size_t i = 0; sends && i < sent_tensors(call); ++i) {
    const auto& tensor = call.tensors[i];
    copy_bytes(to, tensor.const_data_ptr(), tensor.nbytes());
    to += aligned(static_cast<int64_t>(tensor.nbytes()));
  }
  control(rank_).posted.advance_to(number);
}

void SharedCalls::complete(const Collective& call, uint32_t number) {
  const auto signature = signature_of(call);
  for (int rank = 0; rank < memory_.size(); ++rank) {
    if (slot(rank, number).signature != signature) {
      fail(format("rank {} is at another call", rank));
    }
    // Not complete there, so not here either: its time was up, for example.
    const auto& peer = control(rank);
    if (peer.has_left.load(std::memory_order_acquire) != 0 && !peer.finished.has_reached(number)) {
      fail(format("rank {} has left the group", rank));
    }
  }
  int64_t at = 0;
  for (size_t i = 0; i < sent_tensors(call); ++i) {
    const auto& tensor = call.tensors[i];
    const auto input = [&](int rank) -> const char* { return slot(rank, number).data + at; };
    switch (call.kind) {
      case Collective::Kind::kAllReduce: {
        std::vector<const void*> inputs;
        inputs.reserve(static_cast<size_t>(memory_.size()));
        for (int rank = 0; rank < memory_.size(); ++rank) inputs.push_back(input(rank));
        reduce_in_rank_order(inputs, call.op, tensor);
        break;
      }
      case Collective::Kind::kBroadcast:
        if (call.root != rank_) {
          copy_bytes(tensor.mutable_data_ptr(), input(call.root), tensor.nbytes());
        }
        break;
      case Collective::Kind::kAllGather:
        for (int rank = 0; rank < memory_.size(); ++rank) {
          copy_bytes(static_cast<char*>(call.tensors[1].mutable_data_ptr()) +
                         static_cast<size_t>(rank) * tensor.nbytes(),
                     input(rank), tensor.nbytes());
        }
        break;
      default:
        break;
    }
    at += aligned(static_cast<int64_t>(tensor.nbytes()));
  }
  control(rank_).finished.advance_to(number);
}

// Some time, until the counter moves. Without the lock: other threads may start calls meanwhile.
void SharedCalls::pause(const Missing& missing, Clock::time_point deadline) {
  auto& counter = *missing.counter;
  const auto& peer = control(missing.rank);
  for (int spin = 0; spin < spins_; ++spin) {
    if (counter.has_reached(missing.number)) return;
    relax();
  }
  const uint32_t seen = counter.value.load(std::memory_order_acquire);
  if (counter.has_reached(missing.number)) return;
  if (peer.has_left.load(std::memory_order_acquire) == 0) counter.sleep(seen, kEndedCheckInterval);
  if (counter.has_reached(missing.number)) return;

  const bool has_left = peer.has_left.load(std::memory_order_acquire) != 0;
  const bool has_ended = memory_.has_ended(missing.rank);
  const bool is_late = Clock::now() > deadline;
  // The counter last: a rank may have finished its part and ended.
  if (!(has_left || has_ended || is_late) || counter.has_reached(missing.number)) return;
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  fail(has_ended  ? format("the process of rank {} has ended", missing.rank)
       : has_left ? format("rank {} has left the group", missing.rank)
                  : "the time is up");
}

// With the lock.
void SharedCalls::fail(const std::string& reason) {
  failure_ = reason;
  leave();
  throw std::runtime_error(reason);
}

void SharedCalls::leave() {
  auto& own = control(rank_);
  own.has_left.store(1, std::memory_order_release);
  own.posted.wake();
  own.finished.wake();
}

}  // namespace fleet::comm
