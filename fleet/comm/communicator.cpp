// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/communicator.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <exception>

#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/transport/elastic_transport.h"
#include "fleet/comm/transport/process_group_transport.h"
#include "fleet/comm/transport/shared_memory/shared_memory_transport.h"
#include "fleet/comm/transport/transport.h"
#include "fleet/comm/transport/work_state.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {
namespace {

using Clock = std::chrono::system_clock;

std::string clock_time(Clock::time_point when) {
  const std::time_t seconds = Clock::to_time_t(when);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return format("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
}

// " (12 x Float, 0.0 KB)", " (3 tensors, 1.2 MB)"
std::string describe(const std::vector<torch::Tensor>& tensors) {
  if (tensors.empty()) return "";
  double bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<double>(tensor.nbytes());
  const auto size =
      bytes < 1e5 ? format("{:.1f} KB", bytes / 1e3) : format("{:.1f} MB", bytes / 1e6);
  const auto& first = tensors.front();
  const auto what = tensors.size() == 1
                        ? format("{} x {}", first.numel(), c10::toString(first.scalar_type()))
                        : format("{} tensors", tensors.size());
  return format(" ({}, {})", what, size);
}

// LibTorch's message without source positions and stack trace.
std::string first_line(const std::string& text) {
  auto line = text.substr(0, text.find('\n'));
  if (const auto bracket = line.find("] ");
      !line.empty() && line[0] == '[' && bracket != std::string::npos) {
    line = line.substr(bracket + 2);
  }
  return line.substr(0,
                     line.find(" This is typically caused"));  // general advice; ours is specific
}

void check(const torch::Tensor& tensor, std::string_view call) {
  static constexpr std::array kTypes = {torch::kFloat, torch::kDouble, torch::kBFloat16,
                                        torch::kHalf, torch::kLong};
  if (!tensor.defined()) throw Error("comm", format("{}: the tensor is undefined", call));
  if (!tensor.is_contiguous()) {
    throw Error("comm", format("{}: the tensor is not contiguous", call),
                "pass tensor.contiguous()");
  }
  if (std::find(kTypes.begin(), kTypes.end(), tensor.scalar_type()) == kTypes.end()) {
    throw Error("comm",
                format("{}: {} tensors cannot be sent", call, c10::toString(tensor.scalar_type())),
                "use float, double, bfloat16, half or int64");
  }
}

}  // namespace

template <typename F>
void Work::State::guarded(F&& work) const {
  try {
    work();
  } catch (const Error&) {  // complete already
    throw;
  } catch (const std::exception& error) {
    fail(first_line(error.what()));
  }
}

void Work::State::fail(const std::string& reason) const {
  const auto seconds = std::chrono::duration<double>(Clock::now() - since).count();
  const auto who = watch ? watch->diagnose({group, number, what}) : std::string("a peer failed");
  const char* log_dir = std::getenv("FLEET_LOG_DIR");
  throw Error("comm",
              format("rank {}: {} failed after {:.1f} s (since {}): {}\n  reason: {}", rank, what,
                     seconds, clock_time(since), who, reason),
              format("read the failed rank's output{}; the limit for a call is {:.0f} s "
                     "(FLEET_TIMEOUT_S)",
                     log_dir ? format(" in {}/workerlog.*", log_dir) : std::string(),
                     static_cast<double>(timeout.count()) / 1e3));
}

std::string Work::State::waits_for() const {
  return watch ? watch->waits_for({group, number, what}) : "its peers";
}

void Work::State::log_wait_if_due() {
  if (notice->is_due()) notice->log_if_due(format("{}: {}", what, waits_for()));
}

Work::Work() = default;
Work::Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&&) noexcept = default;

Work::~Work() {
  // LibTorch holds the tensors until the work is complete, so nothing dangles without a wait.
  if (!state_ || std::uncaught_exceptions() > 0) return;
  try {
    state_->begin_wait();
    state_->block();
  } catch (const std::exception&) {  // NOLINT: a destructor cannot report it
  }
}

void Work::wait() {
  if (!state_) return;
  const auto state = std::move(state_);
  state->begin_wait();
  state->guarded([&] { state->block(); });
}

bool Work::done() const { return !state_ || state_->is_done(); }

Communicator::Communicator() = default;

Communicator::Communicator(std::shared_ptr<ElasticGroup> group, CommunicatorOptions options,
                           std::shared_ptr<PeerWatch> watch)
    : rank_(group->rank()),
      size_(group->size()),
      options_(std::move(options)),
      transport_(std::make_shared<ElasticTransport>(group)),
      group_(std::move(group)),
      watch_(std::move(watch)) {}

Communicator::Communicator(const Store& store, int rank, int size, CommunicatorOptions options,
                           std::shared_ptr<PeerWatch> watch)
    : rank_(rank), size_(size), options_(std::move(options)), watch_(std::move(watch)) {
  FLEET_ASSERT(rank >= 0 && rank < size, format("rank {} of {}", rank, size));
  if (options_.timeout <= std::chrono::milliseconds(0)) {
    throw UsageError(
        "comm", format("a time limit of {} ms would fail every call", options_.timeout.count()),
        "set FLEET_TIMEOUT_S to a number of seconds above 0");
  }
  transport_ = SharedMemoryTransport::over(
      std::make_shared<ProcessGroupTransport>(store, rank, size, options_, watch_));
}

Communicator::Communicator(const Communicator& other, std::shared_ptr<Transport> transport)
    : rank_(other.rank_),
      size_(other.size_),
      options_(other.options_),
      transport_(std::move(transport)),
      group_(other.group_),
      watch_(other.watch_) {}

Communicator::~Communicator() = default;

Work Communicator::begin(std::unique_ptr<Work::State> state, std::string_view what,
                         const std::vector<torch::Tensor>& tensors) {
  state->what = format("{}{}", what, describe(tensors));
  state->since = Clock::now();
  state->timeout = options_.timeout;
  state->notice_every = options_.notice_every;
  state->rank = rank_;
  state->watch = watch_;
  if (watch_) {
    state->group = transport_->group();
    state->number = watch_->begin_call(state->group, state->what);
  }
  state->begin_wait();
  state->guarded([&] { state->launch(); });
  return Work(std::move(state));
}

Work Communicator::start(Collective call, std::string_view what) {
  if (size_ == 1) return {};
  auto tensors = call.tensors;
  if (call.kind == Collective::Kind::kAllGather) tensors.resize(1);  // what it sends
  auto state = transport_->prepare(std::move(call));
  return state ? begin(std::move(state), what, tensors) : Work();
}

Work Communicator::all_reduce_async(const torch::Tensor& tensor, ReduceOp op,
                                    std::string_view what) {
  return all_reduce_coalesced({tensor}, op, what);
}

void Communicator::all_reduce(const torch::Tensor& tensor, ReduceOp op, std::string_view what) {
  all_reduce_async(tensor, op, what).wait();
}

Work Communicator::all_reduce_coalesced(const std::vector<torch::Tensor>& tensors, ReduceOp op,
                                        std::string_view what) {
  for (const auto& tensor : tensors) {
    check(tensor, "all_reduce");
    if (op == ReduceOp::kAvg && tensor.scalar_type() == torch::kLong) {
      throw Error("comm", "all_reduce: the average of int64 would be truncated",
                  "reduce with kSum and divide");
    }
  }
  return start({.kind = Collective::Kind::kAllReduce, .tensors = tensors, .op = op},
               format("all_reduce of {}", what));
}

Work Communicator::broadcast_async(const torch::Tensor& tensor, int root, std::string_view what) {
  check(tensor, "broadcast");
  if (root < 0 || root >= size_) {
    throw Error("comm", format("broadcast: there is no rank {} among {}", root, size_));
  }
  return start({.kind = Collective::Kind::kBroadcast, .tensors = {tensor}, .root = root},
               format("broadcast of {} from rank {}", what, root));
}

void Communicator::broadcast(const torch::Tensor& tensor, int root, std::string_view what) {
  broadcast_async(tensor, root, what).wait();
}

torch::Tensor Communicator::all_gather(const torch::Tensor& tensor, std::string_view what) {
  check(tensor, "all_gather");
  if (size_ == 1) return tensor.unsqueeze(0).clone();
  auto shape = tensor.sizes().vec();
  shape.insert(shape.begin(), size_);
  auto rows = torch::empty(shape, tensor.options());
  start({.kind = Collective::Kind::kAllGather, .tensors = {tensor, rows}},
        format("all_gather of {}", what))
      .wait();
  return rows;
}

void Communicator::barrier(std::string_view what) {
  start({.kind = Collective::Kind::kBarrier}, format("barrier ({})", what)).wait();
}

std::vector<int> Communicator::present() const {
  return transport_ ? transport_->present() : std::vector<int>{rank_};
}

int Communicator::index() const {
  const auto ranks = present();
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  return own == ranks.end() ? rank_ : static_cast<int>(own - ranks.begin());
}

std::shared_ptr<Communicator> Communicator::with_timeout(std::chrono::milliseconds timeout) const {
  if (size_ == 1) return std::make_shared<Communicator>();
  std::shared_ptr<Communicator> same(new Communicator(*this, transport_));
  same->options_.timeout = timeout;
  return same;
}

std::shared_ptr<Communicator> Communicator::duplicate(const std::string& name) const {
  if (size_ == 1) return std::make_shared<Communicator>();
  return std::shared_ptr<Communicator>(new Communicator(*this, transport_->duplicate(name)));
}

int Communicator::ranks_on_host() const {
  if (!watch_) return 1;
  const auto& peers = watch_->peers();
  const auto& own = peers.at(static_cast<size_t>(rank_)).host_id;
  return static_cast<int>(std::ranges::count(peers, own, &PeerIdentity::host_id));
}

}  // namespace fleet::comm
