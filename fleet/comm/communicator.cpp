#define FMT_HEADER_ONLY 1
#include "fleet/comm/communicator.h"

#include <algorithm>
#include <future>
#include <numeric>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "fleet/comm/backend.h"
#include "fleet/comm/elastic_group.h"
#include "fleet/comm/meeting.h"
#include "fleet/comm/peer_watch.h"
#include "fleet/comm/pending_state.h"
#include "fleet/comm/store.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet::comm {
namespace {

using Clock = std::chrono::system_clock;

std::string clock_time(Clock::time_point when) {
  const std::time_t seconds = Clock::to_time_t(when);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return format("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string describe(const torch::Tensor& tensor) {
  const auto bytes = static_cast<double>(tensor.nbytes());
  return format("{} x {}, {}", tensor.numel(), c10::toString(tensor.scalar_type()),
                bytes < 1e5 ? format("{:.1f} KB", bytes / 1e3) : format("{:.1f} MB", bytes / 1e6));
}

// The engine's own words, without its source positions and stack.
std::string first_line(const std::string& text) {
  auto line = text.substr(0, text.find('\n'));
  if (const auto bracket = line.find("] ");
      !line.empty() && line[0] == '[' && bracket != std::string::npos) {
    line = line.substr(bracket + 2);
  }
  return line.substr(0, line.find(" This is typically caused"));  // general advice; ours is better
}

c10d::ReduceOp engine_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    default:
      return c10d::ReduceOp::SUM;
  }
}

}  // namespace

void Pending::State::fail(const std::string& engine) const {
  const auto seconds = std::chrono::duration<double>(Clock::now() - since).count();
  const auto who = watch ? watch->diagnose(sequence) : std::string("a peer failed");
  const char* log_dir = std::getenv("FLEET_LOG_DIR");
  throw Error("comm",
              format("rank {}: {} failed after {:.1f} s (since {}): {}\n  engine: {}", rank, what,
                     seconds, clock_time(since), who, engine),
              format("read the failed rank's own output{}; the limit for a call is {:.0f} s "
                     "(FLEET_TIMEOUT_S)",
                     log_dir ? format(" in {}/workerlog.*", log_dir) : std::string(),
                     static_cast<double>(timeout.count()) / 1e3));
}

Pending::Pending() = default;
Pending::Pending(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;

Pending::~Pending() {
  // The engine holds the tensors until the work is done, so nothing dangles without a wait.
  if (!state_ || std::uncaught_exceptions() > 0) return;
  try {
    state_->block();
  } catch (const std::exception&) {  // NOLINT: a destructor has nobody to tell
  }
}

void Pending::wait() {
  if (!state_) return;
  const auto state = std::move(state_);
  try {
    state->block();
  } catch (const Error&) {  // which says all
    throw;
  } catch (const std::exception& error) {
    state->fail(first_line(error.what()));
  }
}

bool Pending::done() const { return !state_ || state_->is_done(); }

struct Communicator::Backend {
  c10::intrusive_ptr<c10d::Backend> engine;
  Store store;
};

struct Communicator::EngineCall : Pending::State {
  c10::intrusive_ptr<c10d::Work> work;
  torch::Tensor tensor;  // kept until the work is done

  void block() override { work->wait(timeout + std::chrono::seconds(1)); }
  bool is_done() const override { return work->isCompleted(); }
};

struct Communicator::GroupCall : Pending::State {
  std::shared_future<void> done;

  void block() override { done.get(); }
  bool is_done() const override { return done.wait_for(std::chrono::seconds(0)) == kReady; }
  static constexpr auto kReady = std::future_status::ready;
};

Communicator::Communicator() = default;

Communicator::Communicator(std::shared_ptr<ElasticGroup> group, CommunicatorOptions options,
                           std::shared_ptr<PeerWatch> watch)
    : rank_(group->rank()),
      size_(group->size()),
      options_(std::move(options)),
      group_(std::move(group)),
      watch_(std::move(watch)) {}

Communicator::Communicator(const Store& store, int rank, int size, CommunicatorOptions options,
                           std::shared_ptr<PeerWatch> watch)
    : rank_(rank), size_(size), options_(std::move(options)), watch_(std::move(watch)) {
  FLEET_ASSERT(rank >= 0 && rank < size, format("rank {} of {}", rank, size));
  if (options_.timeout <= std::chrono::milliseconds(0)) {
    throw Error("comm",
                format("a time limit of {} ms would fail every call", options_.timeout.count()),
                "set FLEET_TIMEOUT_S to a number of seconds above 0");
  }
  check_backend(options_.backend);
  // The engine only tells that somebody did not come, and prints warnings: it starts when all are
  // there.
  const auto sequence = watch_ ? watch_->starts("making a group") : 0;
  if (const auto missing = meet(store, rank, size, options_.timeout); !missing.empty()) {
    throw Error(
        "comm",
        format("rank {} waited {:.0f} s to make a group of {} ranks, and these did not come:{}{}",
               rank, static_cast<double>(options_.timeout.count()) / 1e3, size, missing,
               watch_ ? "\n  " + watch_->diagnose(sequence) : std::string()),
        "see that all ranks run the same program with the same strategy");
  }
  backend_ = std::make_unique<Backend>(Backend{make_backend(store, rank, size, options_), store});
}

Communicator::~Communicator() = default;

void Communicator::check(const torch::Tensor& tensor, std::string_view call) const {
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

Pending Communicator::begin(std::unique_ptr<Pending::State> state, std::string what,
                            const torch::Tensor* tensor) {
  state->what = tensor != nullptr ? format("{} ({})", what, describe(*tensor)) : std::move(what);
  state->since = Clock::now();
  state->timeout = options_.timeout;
  state->rank = rank_;
  state->watch = watch_;
  if (watch_) state->sequence = watch_->starts(state->what);
  return Pending(std::move(state));
}

template <typename Start>
Pending Communicator::start(std::string what, const torch::Tensor* tensor, Start&& call) {
  if (size_ == 1) return {};
  auto owned = std::make_unique<EngineCall>();
  auto& state = *owned;
  if (tensor != nullptr) state.tensor = *tensor;
  auto pending = begin(std::move(owned), std::move(what), tensor);
  try {
    state.work = call(*backend_->engine);
  } catch (const std::exception& error) {
    state.fail(first_line(error.what()));
  }
  return pending;
}

// A process that has still to join has nobody to call.
Pending Communicator::start(ElasticCall call) {
  if (group_->is_joining()) return {};
  auto owned = std::make_unique<GroupCall>();
  auto& state = *owned;
  const auto* tensor = call.tensors.size() == 1 ? call.tensors.data() : nullptr;
  auto pending = begin(std::move(owned), call.what, tensor);
  call.what = state.what;
  state.done = group_->submit(std::move(call));
  return pending;
}

Pending Communicator::all_reduce_async(const torch::Tensor& tensor, ReduceOp op,
                                       std::string_view what) {
  check(tensor, "all_reduce");
  if (op == ReduceOp::kAvg && tensor.scalar_type() == torch::kLong) {
    throw Error("comm", "all_reduce: the average of int64 would be cut off",
                "reduce with kSum and divide");
  }
  if (group_) {
    return start({.kind = ElasticCall::Kind::kReduce,
                  .tensors = {tensor},
                  .op = op,
                  .what = format("all_reduce of {}", what)});
  }
  return start(format("all_reduce of {}", what), &tensor, [&](c10d::Backend& engine) {
    std::vector<torch::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = engine_op(op);
    options.timeout = options_.timeout;
    return engine.allreduce(tensors, options);
  });
}

void Communicator::all_reduce(const torch::Tensor& tensor, ReduceOp op, std::string_view what) {
  all_reduce_async(tensor, op, what).wait();
}

std::vector<Pending> Communicator::all_reduce_together(const std::vector<torch::Tensor>& tensors,
                                                       ReduceOp op, std::string_view what) {
  std::vector<Pending> pending;
  if (group_) {
    for (const auto& tensor : tensors) check(tensor, "all_reduce");
    pending.push_back(start({.kind = ElasticCall::Kind::kReduce,
                             .tensors = tensors,
                             .op = op,
                             .what = format("all_reduce of {}", what)}));
  } else {
    for (const auto& tensor : tensors) pending.push_back(all_reduce_async(tensor, op, what));
  }
  return pending;
}

Pending Communicator::broadcast_async(const torch::Tensor& tensor, int root,
                                      std::string_view what) {
  check(tensor, "broadcast");
  if (root < 0 || root >= size_) {
    throw Error("comm", format("broadcast: there is no rank {} among {}", root, size_));
  }
  if (group_) {
    return start({.kind = ElasticCall::Kind::kBroadcast,
                  .tensors = {tensor},
                  .root = root,
                  .what = format("broadcast of {} from rank {}", what, root)});
  }
  return start(format("broadcast of {} from rank {}", what, root), &tensor,
               [&](c10d::Backend& engine) {
                 std::vector<torch::Tensor> tensors{tensor};
                 c10d::BroadcastOptions options;
                 options.rootRank = root;
                 options.timeout = options_.timeout;
                 return engine.broadcast(tensors, options);
               });
}

void Communicator::broadcast(const torch::Tensor& tensor, int root, std::string_view what) {
  broadcast_async(tensor, root, what).wait();
}

torch::Tensor Communicator::all_gather(const torch::Tensor& tensor, std::string_view what) {
  check(tensor, "all_gather");
  if (size_ == 1) return tensor.unsqueeze(0).clone();
  auto shape = tensor.sizes().vec();
  shape.insert(shape.begin(), size_);
  if (group_) {
    if (group_->is_joining()) return tensor.unsqueeze(0).expand(shape).contiguous();
    auto rows = torch::zeros(shape, tensor.options());
    rows[rank_].copy_(tensor);
    start({.kind = ElasticCall::Kind::kReduce,
           .tensors = {rows},
           .what = format("all_gather of {}", what)})
        .wait();
    return rows;
  }
  auto gathered = torch::empty(shape, tensor.options());
  start(format("all_gather of {}", what), &tensor, [&](c10d::Backend& engine) {
    std::vector<std::vector<torch::Tensor>> outputs{gathered.unbind(0)};
    std::vector<torch::Tensor> inputs{tensor};
    c10d::AllgatherOptions options;
    options.timeout = options_.timeout;
    return engine.allgather(outputs, inputs, options);
  }).wait();
  return gathered;
}

void Communicator::barrier(std::string_view what) {
  if (group_) {
    start({.kind = ElasticCall::Kind::kMeet, .what = format("barrier ({})", what)}).wait();
    return;
  }
  start(format("barrier ({})", what), nullptr, [&](c10d::Backend& engine) {
    c10d::BarrierOptions options;
    options.timeout = options_.timeout;
    return engine.barrier(options);
  }).wait();
}

std::vector<int> Communicator::present() const {
  if (group_) return group_->present();
  std::vector<int> all(static_cast<size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

int Communicator::index() const {
  if (!group_ || group_->is_joining()) return rank_;
  const auto ranks = present();
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
}

std::shared_ptr<Communicator> Communicator::duplicate(const std::string& name) const {
  if (size_ == 1) return std::make_shared<Communicator>();
  // Its calls have one order.
  if (group_) return std::make_shared<Communicator>(group_, options_, watch_);
  // Two optimizers on one group ask for the same name, and must not meet in each other's place.
  const auto place = format("{}.{}", name, ++duplicates_[name]);
  return std::make_shared<Communicator>(backend_->store.prefixed(place), rank_, size_, options_,
                                        watch_);
}

}  // namespace fleet::comm
