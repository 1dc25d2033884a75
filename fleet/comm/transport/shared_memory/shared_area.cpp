// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/transport/shared_memory/shared_area.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/comm/transport/shared_memory/peer_memory.h"
#include "fleet/comm/transport/shared_memory/shared_counter.h"
#include "fleet/comm/transport/work_state.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kControlBytes = 4096;  // a page, so that the data begins at one
constexpr auto kCheckInterval = 50ms;    // between two checks whether the peers are alive

// The first page of each rank's memory: what other ranks wait on.
struct AreaControl {
  SharedCounter arrived;   // sums whose input of this rank is ready
  SharedCounter finished;  // sums whose chunk this rank has written to all ranks
};

// Sums one chunk over all ranks and writes the result to all of them.
template <typename T>
__attribute__((optimize("O3"))) void sum_two(T* __restrict a, T* __restrict b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const T sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

template <typename T>
__attribute__((optimize("O3"))) void add_to(T* __restrict sum, const T* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

template <typename T>
void sum_chunk(const std::vector<T*>& ranks, int64_t n) {
  if (ranks.size() == 2) return sum_two(ranks[0], ranks[1], n);
  constexpr int64_t kBlock = 4096;  // stays in the first-level cache
  std::array<T, kBlock> sum;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t length = std::min(kBlock, n - begin);
    std::copy_n(ranks[0] + begin, length, sum.data());
    for (size_t r = 1; r < ranks.size(); ++r) add_to(sum.data(), ranks[r] + begin, length);
    for (T* rank : ranks) std::copy_n(sum.data(), length, rank + begin);
  }
}

}  // namespace

struct SharedArea::Impl {
  std::shared_ptr<Communicator> comm;
  int64_t bytes = 0;
  PeerMemory memory;

  struct Job {
    uint32_t number = 0;
    int64_t offset = 0;
    int64_t numel = 0;
    torch::ScalarType dtype = torch::kFloat;
    std::chrono::steady_clock::time_point deadline;
  };
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Job> jobs;
  uint32_t started = 0;
  bool stop = false;
  std::atomic<bool> broken{false};
  std::string reason;  // written before `broken`
  std::thread worker;

  Impl(std::shared_ptr<Communicator> group, int64_t length, PeerMemory blocks)
      : comm(std::move(group)), bytes(length), memory(std::move(blocks)) {}
  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    if (worker.joinable()) worker.join();
  }

  AreaControl& control(int rank) const { return *reinterpret_cast<AreaControl*>(memory.of(rank)); }
  char* data(int rank) const { return memory.of(rank) + kControlBytes; }

  bool stopping() {
    const std::lock_guard lock(mutex);
    return stop;
  }

  // Waits until every rank's counter has reached `number`.
  void wait_for_all(SharedCounter AreaControl::*which, uint32_t number,
                    std::chrono::steady_clock::time_point deadline) {
    for (int rank = 0; rank < memory.size(); ++rank) {
      auto& counter = control(rank).*which;
      while (!counter.has_reached(number)) {
        const uint32_t seen = counter.value.load(std::memory_order_acquire);
        if (broken) throw std::runtime_error(reason);
        if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("the time is up");
        if (stopping()) throw std::runtime_error("stopped");
        // The counter last: a rank may have finished its chunk and ended.
        if (memory.has_ended(rank) && !counter.has_reached(number)) {
          throw std::runtime_error(format("the process of rank {} has ended", rank));
        }
        if (!counter.has_reached(number)) counter.sleep(seen, kCheckInterval);
      }
    }
  }

  template <typename T>
  void sum(const Job& job) {
    constexpr int64_t kLine = 64 / sizeof(T);  // ranks never write to one cache line together
    const auto border = [&](int64_t rank) {
      return std::min(job.numel, (job.numel * rank / comm->size() + kLine - 1) / kLine * kLine);
    };
    const int64_t begin = border(comm->rank());
    std::vector<T*> bases;
    bases.reserve(static_cast<size_t>(memory.size()));
    for (int rank = 0; rank < memory.size(); ++rank) {
      bases.push_back(reinterpret_cast<T*>(data(rank) + job.offset) + begin);
    }
    sum_chunk(bases, border(comm->rank() + 1) - begin);
  }

  void run() {
    auto& own = control(comm->rank());
    while (true) {
      Job job;
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [this] { return stop || !jobs.empty(); });
        if (jobs.empty()) return;
        job = jobs.front();
        jobs.pop_front();
      }
      try {
        own.arrived.advance_to(job.number);
        wait_for_all(&AreaControl::arrived, job.number, job.deadline);
        job.dtype == torch::kDouble ? sum<double>(job) : sum<float>(job);
        own.finished.advance_to(job.number);
      } catch (const std::exception& error) {
        reason = error.what();
        broken = true;
        return;
      }
    }
  }

  struct Sum : Work::State {
    std::shared_ptr<SharedArea> area;
    torch::Tensor tensor;
    uint32_t number = 0;

    void block() override {
      area->impl_->wait_for_all(&AreaControl::finished, number,
                                std::chrono::steady_clock::now() + timeout);
    }
    bool is_done() const override {
      const auto& all = *area->impl_;
      for (int rank = 0; rank < all.memory.size(); ++rank) {
        if (!all.control(rank).finished.has_reached(number)) return false;
      }
      return true;
    }
  };
};

SharedArea::SharedArea(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->worker = std::thread([this] { impl_->run(); });
}
SharedArea::~SharedArea() = default;

void* SharedArea::data() const { return impl_->data(impl_->comm->rank()); }

std::shared_ptr<SharedArea> SharedArea::make(const std::shared_ptr<Communicator>& comm,
                                             int64_t bytes) {
  if (comm->elastic()) return nullptr;
  auto memory = PeerMemory::map(
      comm->watch(), comm->size(), kControlBytes + bytes,
      [&](const torch::Tensor& row) { return comm->all_gather(row, "an offer of shared memory"); });
  if (!memory) return nullptr;
  return std::shared_ptr<SharedArea>(
      new SharedArea(std::make_unique<Impl>(comm, bytes, std::move(*memory))));
}

Work SharedArea::all_reduce_sum_async(const torch::Tensor& tensor, std::string_view what) {
  const auto offset = static_cast<char*>(tensor.data_ptr()) - static_cast<char*>(data());
  FLEET_ASSERT(offset >= 0 && offset + static_cast<int64_t>(tensor.nbytes()) <= impl_->bytes,
               "a tensor outside the shared area");
  FLEET_ASSERT(offset % 64 == 0 && tensor.is_contiguous(),
               "a tensor that is not aligned or contiguous");
  FLEET_ASSERT(tensor.scalar_type() == torch::kFloat || tensor.scalar_type() == torch::kDouble,
               "shared sums are float or double");
  auto sum = std::make_unique<Impl::Sum>();
  sum->area = shared_from_this();
  sum->tensor = tensor;
  auto* const state = sum.get();
  auto pending = impl_->comm->begin(std::move(sum), format("all_reduce of {}", what), {tensor});
  {
    const std::lock_guard lock(impl_->mutex);
    state->number = ++impl_->started;
    impl_->jobs.push_back({state->number, offset, tensor.numel(), tensor.scalar_type(),
                           std::chrono::steady_clock::now() + impl_->comm->options().timeout});
  }
  impl_->wake.notify_one();
  return pending;
}

}  // namespace fleet::comm
