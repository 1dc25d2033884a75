#define FMT_HEADER_ONLY 1
#include "fleet/comm/engine_carrier.h"

#include <algorithm>
#include <numeric>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "fleet/comm/backend.h"
#include "fleet/comm/engine_calls.h"
#include "fleet/comm/meeting.h"
#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet::comm {
struct EngineCarrier::EngineCall : Pending::State {
  EngineCall(Call call, c10::intrusive_ptr<c10d::Backend> engine)
      : call(std::move(call)), engine(std::move(engine)) {}

  void launch() override {
    switch (call.kind) {
      case Call::Kind::kReduce:
        for (const auto& tensor : call.tensors)
          works.push_back(start_reduce(*engine, tensor, call.op, timeout));
        break;
      case Call::Kind::kBroadcast:
        for (const auto& tensor : call.tensors)
          works.push_back(start_broadcast(*engine, tensor, call.root, timeout));
        break;
      case Call::Kind::kGather:
        works.push_back(start_gather(*engine, call.tensors[0], call.tensors[1], timeout));
        break;
      case Call::Kind::kMeet:
        works.push_back(start_meeting(*engine, timeout));
        break;
    }
  }
  void block() override {
    for (const auto& work : works) work->wait(timeout + std::chrono::seconds(1));
  }
  bool is_done() const override {
    return std::all_of(works.begin(), works.end(),
                       [](const EngineWork& work) { return work->isCompleted(); });
  }

  Call call;  // keeps the tensors until the work is done
  c10::intrusive_ptr<c10d::Backend> engine;
  std::vector<EngineWork> works;
};

EngineCarrier::EngineCarrier(const Store& store, int rank, int size, CommunicatorOptions options,
                             std::shared_ptr<PeerWatch> watch)
    : store_(store),
      rank_(rank),
      size_(size),
      options_(std::move(options)),
      watch_(std::move(watch)) {
  check_backend(options_.backend);
  // The engine only tells that somebody did not come, and prints warnings: it starts when all are
  // there.
  CallPlace call{.group = group(), .what = "making a group"};
  if (watch_) call.number = watch_->starts(call.group, call.what);
  if (const auto missing = meet(store, rank, size, options_.timeout); !missing.empty()) {
    throw Error(
        "comm",
        format("rank {} waited {:.0f} s to make a group of {} ranks, and these did not come:{}{}",
               rank, static_cast<double>(options_.timeout.count()) / 1e3, size, missing,
               watch_ ? "\n  " + watch_->diagnose(call) : std::string()),
        "see that all ranks run the same program with the same strategy");
  }
  engine_ = make_backend(store, rank, size, options_);
}

EngineCarrier::~EngineCarrier() {
  if (watch_) watch_->forget(group());
}

std::unique_ptr<Pending::State> EngineCarrier::prepare(Call call) {
  return std::make_unique<EngineCall>(std::move(call), engine_);
}

std::vector<int> EngineCarrier::present() const {
  std::vector<int> all(static_cast<size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::shared_ptr<Carrier> EngineCarrier::duplicate(const std::string& name) {
  // Two optimizers on one group ask for the same name, and must not meet in each other's place.
  const auto place = format("{}.{}", name, ++duplicates_[name]);
  return std::make_shared<EngineCarrier>(store_.prefixed(place), rank_, size_, options_, watch_);
}

}  // namespace fleet::comm
