// SPDX-License-Identifier: Apache-2.0
// BERT's pretraining: masked words and next sentences, from token files (fleet tokenize) or without
// any data. docs/applications/bert.md has a run from raw text.
//
//   build/bin/bert --seq 32 --max_updates 200
//   fleetrun --nproc_per_node 2 build/bin/bert --seq 32 --max_updates 50 --recompute

#include <fleet/fleet.h>

#include <algorithm>

namespace {

namespace apps = fleet::applications;
namespace optim = fleet::optim;

struct Options {
  std::string model = "small";
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  double dropout = 0.1;
  double weight_decay = 0.01;
};

const fleet::FieldList& fields_of(const Options*) {
  using O = Options;
  static const fleet::FieldList list{
      "app",
      {fleet::field<&O::model>("model", "size of the model; small: 4 layers of 256 with 4 heads")
           .one_of({"small", "base", "large"}),
       fleet::field<&O::layers>("layers", "number of layers; 0: as in --model").at_least(0),
       fleet::field<&O::hidden>("hidden", "width of a layer; 0: as in --model").at_least(0),
       fleet::field<&O::heads>("heads", "attention heads; 0: as in --model").at_least(0),
       fleet::field<&O::dropout>("dropout", "dropout of layers and of attention")
           .at_least(0)
           .below(1),
       fleet::field<&O::weight_decay>("weight_decay", "weight decay of Adam; lamb has its own")
           .at_least(0)}};
  return list;
}

apps::Bert make_model(const Options& own, int64_t vocab, int64_t seq) {
  apps::BertOptions options;
  if (own.model == "small") options = {.hidden = 256, .layers = 4, .heads = 4};
  if (own.layers > 0) options.layers = own.layers;
  if (own.hidden > 0) options.hidden = own.hidden;
  if (own.heads > 0) options.heads = own.heads;
  options = own.model == "large" ? apps::bert_large_options(options) : options.resolved();
  options.intermediate = 4 * options.hidden;
  options.vocab = vocab;
  options.max_positions = std::max(options.max_positions, seq);
  options.hidden_dropout = options.attention_dropout = own.dropout;
  return apps::Bert(options);
}

// LAMB is made of Adam, and decays weights itself.
std::unique_ptr<optim::Optimizer> make_optimizer(const apps::Bert& model, const Options& own,
                                                 const fleet::TrainConfig& config) {
  if (config.strategy.lamb) {
    return std::make_unique<optim::Adam>(
        model, optim::AdamOptions{
                   .beta1 = config.beta1, .beta2 = config.beta2, .epsilon = config.epsilon});
  }
  return std::make_unique<optim::AdamW>(
      model, optim::AdamWOptions{.beta1 = config.beta1,
                                 .beta2 = config.beta2,
                                 .epsilon = config.epsilon,
                                 .weight_decay = own.weight_decay,
                                 .max_grad_norm = 1,
                                 .groups = {{.names = {"LayerNorm", "bias"}, .weight_decay = 0}}});
}

int body(int argc, char** argv) {
  Options own;
  apps::BertDataOptions text;
  fleet::RunOptions run{.log_every = 1};
  const auto config = fleet::parse_train_configs(
      argc, argv, {{"Model", own}, {"Data", text}, {"Run", run}},
      {.lr = 1e-3, .beta2 = 0.999, .epsilon = 1e-6},
      {.about = "pretrains BERT: masked words and next sentences",
       .examples = {"{} --seq 32 --max_updates 200",
                    "fleetrun --nproc_per_node 2 {} --seq 32 --max_updates 50 --recompute"},
       .reads = {"lr", "beta1", "beta2", "epsilon", "batch_size", "epochs", "seed", "snapshots"}});
  fleet::init();
  torch::manual_seed(config.seed + fleet::worker_index());
  auto data = apps::load_bert_data(text, config);
  auto model = make_model(own, data.train.vocabulary().size(), text.seq);
  run.load(model);
  auto optimizer = fleet::distributed_optimizer(make_optimizer(model, own, config),
                                                model.with_checkpoints(config.strategy));
  apps::train_bert(model, data, optimizer, config, run);
  run.save_weights(model);
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
