// SPDX-License-Identifier: Apache-2.0
// A training program for the tests of this folder: what a user would write, and the accidents that
// happen to it. The first argument says what it does:
//
//   train STEPS                    trains, and prints every loss and a digest of the parameters
//   fault KIND RANK STEP           trains; at STEP, inside its forward pass, RANK meets KIND:
//                                  kill, stop, throw, exit, exit_once (in the first attempt only)
//   sums KIND RANK CALL            makes many small sums; RANK meets KIND when its input of CALL is
//                                  with the others, and it has not read theirs
//   calls                          asks and does everything in fleet/comm/world.h
//   local_log FILE                 local SGD that logs every update; rank 1 makes its second update
//                                  only when rank 0 has come to its first average, and made FILE
//   plan_only                      asks for a plan; rank 1 meets another size of batch in its third
//                                  update, and has all its plans later than rank 0
//   budget                         has a budget of 10% without an optimizer of Fleet
//   leaves_early                   trains; rank 1 stops after three updates and ends in order
//   throw_while_pending | one_less | group_alone | absent | early_exit | init_twice | before_init

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include <torch/nn.h>

#include "fleet/fleet.h"

#include "tests/ranks/print_line.h"

namespace {

using namespace std::chrono_literals;
using fleet::launch::digest;
using fleet::launch::print_line;

constexpr int64_t kGlobalBatch = 32;

struct Fault {
  std::string kind = "none";
  int rank = -1;
  int64_t step = -1;
};

int number(const char* text) { return std::atoi(text); }

void meet(const Fault& fault) {
  print_line(fleet::format("meets {}", fault.kind));
  if (fault.kind == "kill") ::raise(SIGKILL);
  if (fault.kind == "stop") ::raise(SIGSTOP);
  if (fault.kind == "throw") throw fleet::Error("app", "sample 7 is not a picture", "remove it");
  if (fault.kind == "exit") std::_Exit(3);
  if (fault.kind == "exit_once" && std::getenv("TORCHELASTIC_RESTART_COUNT") == std::string("0")) {
    std::_Exit(3);
  }
}

// The samples of one update, the same for any number of ranks; this rank's share of them.
fleet::Batch share(int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(step) + 100);
  const auto data = torch::randn({kGlobalBatch, 8});
  const fleet::Batch all{data, data.narrow(1, 0, 4).tanh()};
  const int64_t own = kGlobalBatch / fleet::worker_num();
  return all.slice(fleet::worker_index() * own, (fleet::worker_index() + 1) * own);
}

struct ShutdownGuard {
  ~ShutdownGuard() { fleet::shutdown(); }
};

int train(int64_t steps, const Fault& fault, int64_t steps_of_rank_1 = -1) {
  print_line(fleet::format("pid {}", ::getpid()));
  fleet::init();
  const ShutdownGuard shutdown_guard;  // also when this rank throws
  torch::manual_seed(static_cast<uint64_t>(fleet::worker_index()) + 1);  // rank 0's weights win
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 4));
  auto optimizer =
      fleet::distributed_optimizer(fleet::optim::Momentum(net, {.lr = 0.1, .momentum = 0.9}));
  for (int64_t step = 0; step < steps; ++step) {
    if (fleet::worker_index() == 1 && step == steps_of_rank_1) break;
    const auto report = optimizer.minimize(share(step), [&](const fleet::Batch& batch) {
      if (step == fault.step && fleet::worker_index() == fault.rank) meet(fault);
      return torch::mse_loss(net->forward(batch.data), batch.target);
    });
    if (fleet::is_first_worker() || step == 0) {
      print_line(fleet::format("step {} loss {:.9g}", step, report.loss));
    }
  }
  if (steps_of_rank_1 >= 0) fleet::shutdown();  // whose error is to be heard
  print_line(fleet::format("digest {:016x}", digest(net->parameters())));
  return 0;
}

int sums(const Fault& fault) {
  print_line(fleet::format("pid {}", ::getpid()));
  fleet::init();
  const ShutdownGuard shutdown_guard;
  for (int64_t call = 0; call < 600; ++call) {
    const auto numbers = torch::full({16}, static_cast<double>(call), torch::kDouble);
    auto work = fleet::world()->all_reduce_async(numbers, fleet::comm::ReduceOp::kSum, "numbers");
    if (call == fault.step && fleet::worker_index() == fault.rank) meet(fault);
    work.wait();
    const auto expected = static_cast<double>(call * fleet::worker_num());
    if (numbers[15].item<double>() != expected) throw fleet::Error("app", "a wrong sum");
  }
  print_line("all sums");
  return 0;
}

int plan_only() {
  fleet::init();
  const ShutdownGuard shutdown_guard;
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 64));
  for (int i = 0; i < 8; ++i) {
    net->push_back(torch::nn::Linear(64, 64));
    net->push_back(torch::nn::Tanh());
  }
  fleet::DistributedStrategy strategy{.recompute = true};
  strategy.recompute_configs = {.memory_budget = "1GiB", .plan_only = true};
  auto optimizer = fleet::distributed_optimizer(fleet::optim::SGD(net, {.lr = 0.1}), strategy);
  for (int64_t step = 0; step < 40; ++step) {
    const bool is_other = fleet::worker_index() == 1 && step >= 2;
    const auto data = torch::ones({is_other ? 96 : 64, 8});
    print_line(fleet::format("step {}", step));
    optimizer.minimize(fleet::Batch{data, data}, [&](const fleet::Batch& batch) {
      return net->forward(batch.data).square().mean();
    });
  }
  return 0;
}

int local_log(const std::string& file) {
  constexpr int64_t kInterval = 16, kUpdates = 24;
  fleet::init();
  torch::manual_seed(1);
  torch::nn::Linear net(8, 4);
  auto optimizer =
      fleet::distributed_optimizer(fleet::optim::SGD(net, {.lr = 0.1}),
                                   {.localsgd = true, .localsgd_configs = {.k_steps = kInterval}});
  fleet::TrainingLog log(fleet::RunOptions{.log_every = 1});
  fleet::WeightedMean acc1, acc5;
  log.begin_epoch(0);
  for (int64_t step = 0; step < kUpdates; ++step) {
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (fleet::worker_index() == 1 && step == 1 && !std::filesystem::exists(file)) {
      if (std::chrono::steady_clock::now() > until) {
        throw fleet::Error("app", "rank 0 waits for this rank between two averages");
      }
      std::this_thread::sleep_for(10ms);
    }
    if (fleet::worker_index() == 0 && step == kInterval - 1) std::ofstream(file) << "here";
    const auto batch = share(step);
    const auto report = optimizer.minimize(batch, [&](const fleet::Batch& micro_batch) {
      return torch::mse_loss(net->forward(micro_batch.data), micro_batch.target);
    });
    acc1.add(0.5, static_cast<double>(batch.size()));
    log.step(report, acc1, acc5);
  }
  log.end_epoch(optimizer.end_epoch());
  fleet::shutdown();
  return 0;
}

int calls() {
  fleet::init();
  std::string endpoints;
  for (const auto& endpoint : fleet::worker_endpoints()) endpoints += " " + endpoint;
  print_line(fleet::format("rank {} of {}, local {} of {}, first {}, endpoints{}",
                           fleet::worker_index(), fleet::worker_num(), fleet::local_worker_index(),
                           fleet::local_worker_num(), fleet::is_first_worker(), endpoints));
  fleet::barrier_worker();
  const auto counts = torch::tensor({int64_t{1}, int64_t{10} + fleet::worker_index()});
  fleet::all_reduce_sum(counts);
  print_line(fleet::format("sums {} {}", counts[0].item<int64_t>(), counts[1].item<int64_t>()));
  fleet::shutdown();
  print_line(fleet::format("joined {}", fleet::is_initialized()));
  return 0;
}

// One rank makes another group alone, as with a strategy that differs between ranks.
int group_alone() {
  fleet::init();
  if (fleet::worker_index() == 1) std::this_thread::sleep_for(60s);
  const auto other = fleet::world()->duplicate("alone");
  return 0;
}

// Rank 1 has started a collective, and throws before rank 0 comes to it.
int throw_while_pending() {
  fleet::init();
  if (fleet::worker_index() == 0) std::this_thread::sleep_for(60s);
  const auto numbers = torch::ones({1000});
  const auto pending =
      fleet::world()->all_reduce_async(numbers, fleet::comm::ReduceOp::kSum, "some numbers");
  throw fleet::Error("app", "sample 7 is not a picture");
}

int budget() {
  fleet::init();
  fleet::MemoryBudget budget({.budget = "10%"});
  const auto weight = torch::ones({4}).requires_grad_();
  budget.step([&] { return weight.square().sum(); });
  print_line(fleet::format("granted {}", budget.report().budget));
  return 0;
}

int one_less() {
  fleet::init();
  fleet::barrier_worker();
  if (fleet::worker_index() == 1) std::this_thread::sleep_for(60s);
  fleet::barrier_worker();
  return 0;
}

// Rank 1 does something else than to come.
int without_rank_one(bool exits) {
  if (std::getenv("RANK") == std::string("1")) {
    if (exits) return 0;
    std::this_thread::sleep_for(60s);
  }
  fleet::init();
  return 0;
}

int init_twice() {
  fleet::init();
  fleet::init();
  return 0;
}

int body(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "train" && argc == 3) return train(number(argv[2]), {});
  if (mode == "fault" && argc == 5) {
    return train(20, {.kind = argv[2], .rank = number(argv[3]), .step = number(argv[4])});
  }
  if (mode == "sums" && argc == 5) {
    return sums({.kind = argv[2], .rank = number(argv[3]), .step = number(argv[4])});
  }
  if (mode == "leaves_early") return train(20, {}, 3);
  if (mode == "calls") return calls();
  if (mode == "local_log" && argc == 3) return local_log(argv[2]);
  if (mode == "plan_only") return plan_only();
  if (mode == "budget") return budget();
  if (mode == "one_less") return one_less();
  if (mode == "group_alone") return group_alone();
  if (mode == "throw_while_pending") return throw_while_pending();
  if (mode == "absent") return without_rank_one(false);
  if (mode == "early_exit") return without_rank_one(true);
  if (mode == "init_twice") return init_twice();
  if (mode == "before_init") return fleet::worker_index();
  throw fleet::UsageError("app", "see the first lines of rank_program.cpp");
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
