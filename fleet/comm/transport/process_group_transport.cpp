// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#include "fleet/comm/transport/process_group_transport.h"

#include <algorithm>
#include <numeric>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "fleet/comm/rendezvous/store_based_barrier.h"
#include "fleet/comm/transport/backend.h"
#include "fleet/comm/transport/backend_collectives.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct ProcessGroupTransport::BackendCall : Work::State {
  BackendCall(Collective call, c10::intrusive_ptr<c10d::Backend> backend, bool waits_in_slices)
      : call(std::move(call)), backend(std::move(backend)), waits_in_slices(waits_in_slices) {}

  void launch() override {
    switch (call.kind) {
      case Collective::Kind::kAllReduce:
        for (const auto& tensor : call.tensors)
          works.push_back(start_all_reduce(*backend, tensor, call.op, timeout));
        break;
      case Collective::Kind::kBroadcast:
        for (const auto& tensor : call.tensors)
          works.push_back(start_broadcast(*backend, tensor, call.root, timeout));
        break;
      case Collective::Kind::kAllGather:
        works.push_back(start_all_gather(*backend, call.tensors[0], call.tensors[1], timeout));
        break;
      case Collective::Kind::kBarrier:
        works.push_back(start_barrier(*backend, timeout));
        break;
      case Collective::Kind::kAdmit:
        FLEET_ASSERT(false, "only elastic groups admit processes");
    }
  }
  void block() override {
    const auto deadline = Clock::now() + timeout + std::chrono::seconds(1);
    for (const auto& work : works) {
      while (!wait_until_notice(*work, deadline)) log_wait_if_due();
    }
  }
  // Whether it is complete. c10d throws for a slice that is over as for a call that has failed.
  bool wait_until_notice(c10d::Work& work, Clock::time_point deadline) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const bool is_last = !waits_in_slices || left <= until_notice();
    try {
      work.wait(is_last ? std::max(left, std::chrono::milliseconds(1)) : until_notice());
    } catch (const std::exception&) {
      if (is_last) throw;
      if (!work.isCompleted()) return false;
      work.wait();
    }
    return true;
  }
  bool is_done() const override {
    return std::all_of(works.begin(), works.end(),
                       [](const BackendWork& work) { return work->isCompleted(); });
  }

  Collective call;  // keeps the tensors until the work is complete
  c10::intrusive_ptr<c10d::Backend> backend;
  bool waits_in_slices;
  std::vector<BackendWork> works;
};

ProcessGroupTransport::ProcessGroupTransport(const Store& store, int rank, int size,
                                             CommunicatorOptions options,
                                             std::shared_ptr<PeerWatch> watch)
    : store_(store),
      rank_(rank),
      size_(size),
      options_(std::move(options)),
      watch_(std::move(watch)) {
  check_backend(options_.backend);
  // LibTorch does not say which rank is missing, and prints warnings: it connects after a barrier.
  setup_call_ = {.group = group(), .what = "making a group"};
  if (watch_) setup_call_.number = watch_->begin_call(setup_call_.group, setup_call_.what);
  WaitNotice notice("comm", options_.timeout, options_.notice_every);
  const auto missing = store_based_barrier(store, rank, size, options_.timeout, notice);
  if (!missing.empty()) {
    throw Error(
        "comm",
        format("rank {} waited {:.0f} s to make a group of {} ranks, and {} did not arrive{}", rank,
               static_cast<double>(options_.timeout.count()) / 1e3, size, ranks_text(missing),
               watch_ ? "\n  " + watch_->diagnose(setup_call_) : std::string()),
        "see that all ranks run the same program with the same strategy");
  }
  backend_ = make_backend(store, rank, size, options_);
}

ProcessGroupTransport::~ProcessGroupTransport() {
  if (watch_) watch_->forget(group());
}

std::unique_ptr<Work::State> ProcessGroupTransport::prepare(Collective call) {
  // NCCL ends a call whose wait is over.
  return std::make_unique<BackendCall>(std::move(call), backend_, options_.backend == "gloo");
}

std::vector<int> ProcessGroupTransport::present() const {
  std::vector<int> all(static_cast<size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

torch::Tensor ProcessGroupTransport::gather_during_setup(const torch::Tensor& row) {
  auto shape = row.sizes().vec();
  shape.insert(shape.begin(), size_);
  auto rows = torch::empty(shape, row.options());
  try {
    start_all_gather(*backend_, row, rows, options_.timeout)->wait(options_.timeout);
  } catch (const c10::Error& error) {
    throw Error("comm",
                format("rank {} could not make a group of {} ranks: {}\n  reason: {}", rank_, size_,
                       watch_ ? watch_->diagnose(setup_call_) : "a peer failed",
                       error.what_without_backtrace()));
  }
  return rows;
}

std::shared_ptr<Transport> ProcessGroupTransport::duplicate(const std::string& name) {
  return duplicate_group(name);
}

std::shared_ptr<ProcessGroupTransport> ProcessGroupTransport::duplicate_group(
    const std::string& name) {
  // Two optimizers on one group may use the same name, and must not share a rendezvous.
  const auto unique = format("{}.{}", name, ++duplicates_[name]);
  return std::make_shared<ProcessGroupTransport>(store_.prefixed(unique), rank_, size_, options_,
                                                 watch_);
}

}  // namespace fleet::comm
