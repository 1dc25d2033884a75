// SPDX-License-Identifier: Apache-2.0
// Full updates of the applications beside the same nets in PyTorch.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include <ATen/Parallel.h>

#include "fleet/applications/data/synthetic.h"
#include "fleet/core/process/resident_memory.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/adam.h"
#include "fleet/optim/momentum.h"
#include "fleet/precision/low_precision_speed.h"
#include "fleet/train/distributed_optimizer.h"

#include "bench/benches.h"
#include "bench/python_peer.h"

namespace fleet::bench {
namespace {

namespace apps = applications;

constexpr int kRounds = 8;

// What the CPU is good at: bf16 where it has instructions for it, else fp32.
bool is_bf16() {
  static const bool is = precision::low_precision_slowdown(torch::kBFloat16) < 1;
  return is;
}
std::string type_name() { return is_bf16() ? "bf16" : "fp32"; }

// All of BERT-large takes some 19 GB twice, and hours without bf16; layers are alike.
int64_t bert_layers() {
  const auto pages = static_cast<double>(::sysconf(_SC_AVPHYS_PAGES));
  const auto bytes = pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
  return is_bf16() && bytes > 48e9 ? 24 : 2;
}

DistributedStrategy strategy() {
  DistributedStrategy strategy;
  strategy.amp = is_bf16();
  return strategy;
}

// As the peer does: gives back what an earlier net had, and counts from here.
void forget_memory() {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
}

// Alternately one update of Fleet's and one of the peer's, of which the first of each is not
// counted: it allocates.
template <typename Step>
void add_rows(std::vector<Row>& rows, const std::string& name, int64_t samples, PythonPeer& peer,
              const std::string& peer_net, const Step& step) {
  std::vector<std::function<void()>> works = {step};
  if (peer.is_available()) {
    peer.ask(peer_net);
    works.emplace_back([&] { peer.ask("step"); });
  }
  for (const auto& work : works) work();
  const auto timings = alternate(kRounds, works);
  Row speed{name,
            static_cast<double>(samples) / timings[0].median(),
            "samples/s",
            "none: FLEET_PYTHON names no Python with PyTorch and torchvision",
            0,
            0,
            timings[0].spread()};
  Row memory{name + ", peak of the process",
             static_cast<double>(peak_resident_bytes()) / (1 << 20),
             "MiB",
             speed.peer,
             0,
             0,
             ""};
  if (peer.is_available()) {
    speed.peer = memory.peer = "PyTorch, tuned by hand";
    const Slowdown peers(timings[1], timings[0]);
    speed.peer_value = static_cast<double>(samples) / timings[1].median();
    speed.ratio = peers.middle;
    speed.note = format("half of the ratios {:.2f} to {:.2f} | {} | peer {}", peers.low, peers.high,
                        timings[0].spread(), timings[1].spread());
    memory.peer_value = std::stod(peer.ask("peak"));
    memory.ratio = memory.peer_value / memory.value;
    peer.ask("forget");
  }
  rows.push_back(speed);
  rows.push_back(memory);
  forget_memory();
}

void add_bert(std::vector<Row>& rows, PythonPeer& peer, int64_t batch, int64_t seq) {
  auto options = apps::bert_large_options();
  options.layers = bert_layers();
  apps::Bert model(options);
  auto optimizer = distributed_optimizer(optim::AdamW(model, {.lr = 1e-4}), strategy());
  auto data = apps::synthetic_batch(options, batch, 1, seq);
  data.attention_mask.fill_(1);  // as the peer's samples, which have no padding
  add_rows(rows,
           format("BERT large, {} layers, {}, batch {}, {} tokens", options.layers, type_name(),
                  batch, seq),
           batch, peer,
           format("bert {} {} {} {}", options.layers, batch, seq, data.masked_labels.size(0)), [&] {
             optimizer.minimize(
                 data, [&](const BertBatch& micro_batch) { return model.loss(micro_batch); });
           });
}

void add_resnet(std::vector<Row>& rows, PythonPeer& peer, int64_t batch, int64_t size) {
  auto model = apps::Resnet50();
  auto optimizer = distributed_optimizer(optim::Momentum(model, {.lr = 0.01}), strategy());
  const auto data = apps::synthetic_batch(model.options(), batch, 1, size);
  add_rows(
      rows, format("ResNet50, channels-last, {}, batch {}, {} pixels", type_name(), batch, size),
      batch, peer, format("resnet50 {} {}", batch, size), [&] {
        optimizer.minimize(data, [&](const Batch& micro_batch) { return model.loss(micro_batch); });
      });
}

}  // namespace

std::vector<Row> bench_models() {
  PythonPeer peer(FLEET_MODELS_PEER,
                  {std::to_string(at::get_num_threads()), is_bf16() ? "bfloat16" : "float32"});
  std::vector<Row> rows;
  add_bert(rows, peer, 8, 128);
  add_bert(rows, peer, 8, 512);
  add_resnet(rows, peer, 16, 224);
  return rows;
}

}  // namespace fleet::bench
