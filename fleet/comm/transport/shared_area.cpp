// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/transport/shared_area.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/comm/transport/work_state.h"
#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/process/environment.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {
namespace shared_memory {

constexpr int64_t kPage = 4096;

/// The first page of each rank's memory: the counters that other ranks wait on.
struct Control {
  std::atomic<uint32_t> arrived;   // sums whose input of this rank is ready
  std::atomic<uint32_t> finished;  // sums whose chunk this rank has written to all ranks
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

class Mapping {
 public:
  Mapping() = default;
  Mapping(int fd, int64_t bytes) : bytes_(bytes) {
    void* memory =
        ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memory_ = memory == MAP_FAILED ? nullptr : memory;
  }
  ~Mapping() {
    if (memory_ != nullptr) ::munmap(memory_, static_cast<size_t>(bytes_));
  }
  Mapping(Mapping&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  bool good() const { return memory_ != nullptr; }
  Control& control() const { return *static_cast<Control*>(memory_); }
  char* data() const { return static_cast<char*>(memory_) + kPage; }

 private:
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace shared_memory

namespace {

using namespace std::chrono_literals;
using shared_memory::Control;
using shared_memory::kPage;
using shared_memory::Mapping;

constexpr auto kLook = 50ms;  // between two checks whether the peers are alive

// Counters wrap around after 2^32 sums; the difference stays correct.
bool reached(uint32_t counter, uint32_t wanted) {
  return static_cast<int32_t>(counter - wanted) >= 0;
}

void announce(std::atomic<uint32_t>& word, uint32_t value) {
  word.store(value, std::memory_order_release);
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
            0);
}

void sleep_on(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds time) {
  const timespec limit{time.count() / 1'000'000'000, time.count() % 1'000'000'000};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

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
void sum_share(const std::vector<T*>& ranks, int64_t n) {
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
  std::vector<Mapping> ranks;
  std::vector<Descriptor> processes;  // per rank: readable once the process has ended

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

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    if (worker.joinable()) worker.join();
  }

  bool peer_ended(size_t rank) const {
    if (processes[rank].get() < 0) return false;
    pollfd poll{processes[rank].get(), POLLIN, 0};
    return ::poll(&poll, 1, 0) > 0;
  }

  bool stopping() {
    const std::lock_guard lock(mutex);
    return stop;
  }

  // Waits until every rank's `word` has reached `number`.
  void wait_for_all(std::atomic<uint32_t> Control::*word, uint32_t number,
                    std::chrono::steady_clock::time_point deadline) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      auto& counter = ranks[r].control().*word;
      while (true) {
        const uint32_t seen = counter.load(std::memory_order_acquire);
        if (reached(seen, number)) break;
        if (broken) throw std::runtime_error(reason);
        if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("the time is up");
        if (stopping()) throw std::runtime_error("stopped");
        // The counter first: a rank may have finished its chunk and ended.
        const bool ended = peer_ended(r);
        if (ended && !reached(counter.load(std::memory_order_acquire), number)) {
          throw std::runtime_error(format("the process of rank {} has ended", r));
        }
        sleep_on(counter, seen, kLook);
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
    for (const auto& rank : ranks)
      bases.push_back(reinterpret_cast<T*>(rank.data() + job.offset) + begin);
    sum_share(bases, border(comm->rank() + 1) - begin);
  }

  void run() {
    auto& own = ranks[static_cast<size_t>(comm->rank())].control();
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
        announce(own.arrived, job.number);
        wait_for_all(&Control::arrived, job.number, job.deadline);
        job.dtype == torch::kDouble ? sum<double>(job) : sum<float>(job);
        announce(own.finished, job.number);
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
      area->impl_->wait_for_all(&Control::finished, number,
                                std::chrono::steady_clock::now() + timeout);
    }
    bool is_done() const override {
      const auto& all = area->impl_->ranks;
      return std::all_of(all.begin(), all.end(), [&](const Mapping& rank) {
        return reached(rank.control().finished.load(std::memory_order_acquire), number);
      });
    }
  };
};

SharedArea::SharedArea(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->worker = std::thread([this] { impl_->run(); });
}
SharedArea::~SharedArea() = default;

void* SharedArea::data() const {
  return impl_->ranks[static_cast<size_t>(impl_->comm->rank())].data();
}

std::shared_ptr<SharedArea> SharedArea::make(const std::shared_ptr<Communicator>& comm,
                                             int64_t bytes) {
  if (comm->elastic()) return nullptr;
  const auto* const watch = comm->watch();
  bool possible =
      environment_switch("FLEET_SHARED_MEMORY", true,
                         "0: ranks of one machine use sockets; 1, or unset: shared memory") &&
      watch != nullptr;
  if (possible) {
    const auto& peers = watch->peers();
    possible = static_cast<int>(peers.size()) == comm->size() &&
               std::all_of(peers.begin(), peers.end(), [&](const PeerIdentity& peer) {
                 return peer.host_id == peers[0].host_id;
               });
  }
  // Every rank takes part in every call below, even if it cannot share memory: the result must be
  // the same on all.
  const int64_t length = kPage + (bytes + kPage - 1) / kPage * kPage;
  Descriptor own(possible ? ::memfd_create("fleet", MFD_CLOEXEC) : -1);
  if (own.get() >= 0 && ::ftruncate(own.get(), length) != 0) own = Descriptor();
  const auto offers = comm->all_gather(
      torch::tensor({static_cast<int64_t>(own.get()), static_cast<int64_t>(::getpid()), length},
                    torch::kLong),
      "an offer of shared memory");

  auto impl = std::make_unique<Impl>();
  impl->comm = comm;
  impl->bytes = bytes;
  for (int rank = 0; possible && rank < comm->size(); ++rank) {
    const auto fd = offers[rank][0].item<int64_t>();
    const auto pid = offers[rank][1].item<int64_t>();
    if (fd < 0 || offers[rank][2].item<int64_t>() != length) {
      possible = false;
      break;
    }
    const Descriptor theirs(::open(format("/proc/{}/fd/{}", pid, fd).c_str(), O_RDWR | O_CLOEXEC));
    impl->ranks.emplace_back(theirs.get(), length);
    impl->processes.emplace_back(
        pid == ::getpid() ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    possible = theirs.get() >= 0 && impl->ranks.back().good();
  }
  auto agreed = torch::full({1}, possible ? 0 : 1, torch::kLong);
  comm->all_reduce(agreed, ReduceOp::kMax, "whether memory can be shared");
  if (agreed.item<int64_t>() != 0) return nullptr;
  return std::shared_ptr<SharedArea>(new SharedArea(std::move(impl)));
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
