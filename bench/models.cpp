// Full updates of the applications beside the same nets in PyTorch.
#include <algorithm>

#include <ATen/Parallel.h>

#include "fleet/applications/synthetic.h"
#include "fleet/core/format.h"
#include "fleet/optim/adam.h"
#include "fleet/optim/momentum.h"
#include "fleet/train/distributed_optimizer.h"

#include "bench/benches.h"
#include "bench/python_peer.h"

namespace fleet::bench {
namespace {

namespace apps = applications;

constexpr int kRounds = 5;
constexpr int64_t kBertLayers =
    2;  // of 24: time is that of the layers, memory fits a small machine

// Alternately one update of Fleet's and one of the peer's, of which the first of each is not
// counted: it allocates.
template <typename Step>
void add_row(std::vector<Row>& rows, const std::string& name, int64_t samples, PythonPeer& peer,
             const std::string& peer_net, const Step& step) {
  std::vector<std::function<void()>> works = {step};
  if (peer.is_there()) {
    peer.ask(peer_net);
    works.emplace_back([&] { peer.ask("step"); });
  }
  for (const auto& work : works) work();
  const auto timings = alternate(kRounds, works);
  const double own = static_cast<double>(samples) / timings[0].best();
  Row row{name,
          own,
          "samples/s",
          "none: FLEET_PYTHON names no Python with PyTorch and torchvision",
          0,
          0,
          timings[0].spread()};
  if (peer.is_there()) {
    peer.ask("forget");
    row.peer = "PyTorch, fused optimizer";
    row.peer_value = static_cast<double>(samples) / timings[1].best();
    row.ratio = own / row.peer_value;
    row.note = format("{} | peer {}", timings[0].spread(), timings[1].spread());
  }
  rows.push_back(row);
}

void add_bert(std::vector<Row>& rows, PythonPeer& peer, int64_t batch, int64_t seq) {
  auto options = apps::bert_large_options();
  options.layers = kBertLayers;
  apps::Bert model(options);
  auto optimizer = distributed_optimizer(optim::AdamW(model, {.lr = 1e-4}));
  const auto data = apps::synthetic_batch(options, batch, 1, seq);
  add_row(
      rows, format("BERT large, {} layers, batch {}, {} tokens", kBertLayers, batch, seq), batch,
      peer, format("bert {} {} {} {}", kBertLayers, batch, seq, data.masked_labels.size(0)),
      [&] { optimizer.minimize(data, [&](const BertBatch& part) { return model.loss(part); }); });
}

void add_resnet(std::vector<Row>& rows, PythonPeer& peer, int64_t batch, int64_t size) {
  auto model = apps::Resnet50();
  auto optimizer = distributed_optimizer(optim::Momentum(model, {.lr = 0.01}));
  const auto data = apps::synthetic_batch(model.options(), batch, 1, size);
  add_row(rows, format("ResNet50, channels-last, batch {}, {} pixels", batch, size), batch, peer,
          format("resnet50 {} {}", batch, size),
          [&] { optimizer.minimize(data, [&](const Batch& part) { return model.loss(part); }); });
}

}  // namespace

std::vector<Row> bench_models() {
  PythonPeer peer(FLEET_MODELS_PEER, {std::to_string(at::get_num_threads())});
  std::vector<Row> rows;
  add_bert(rows, peer, 8, 128);
  add_bert(rows, peer, 2, 512);
  add_resnet(rows, peer, 8, 224);
  return rows;
}

}  // namespace fleet::bench
