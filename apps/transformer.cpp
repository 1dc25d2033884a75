// SPDX-License-Identifier: Apache-2.0
// The Transformer, encoder and decoder, on pairs of texts or without any data: it then learns to
// reverse sequences. docs/applications/transformer.md has runs.
//
//   build/bin/transformer --max_updates 300
//   fleetrun --nproc_per_node 2 build/bin/transformer --max_updates 50 --recompute

#include <fleet/fleet.h>

#include <algorithm>

namespace {

namespace apps = fleet::applications;

struct Options {
  std::string model = "small";
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  double dropout = 0.1;
  double label_smoothing = 0.1;
};

const fleet::FieldList& fields_of(const Options*) {
  using O = Options;
  static const fleet::FieldList list{
      "app",
      {fleet::field<&O::model>("model",
                               "size of the model; small: 2 and 2 layers of 128 with 4 heads")
           .one_of({"small", "base", "big"}),
       fleet::field<&O::layers>("layers",
                                "layers of the encoder, and of the decoder; 0: as in --model")
           .at_least(0),
       fleet::field<&O::hidden>("hidden", "width of a layer; 0: as in --model").at_least(0),
       fleet::field<&O::heads>("heads", "attention heads; 0: as in --model").at_least(0),
       fleet::field<&O::dropout>("dropout", "dropout of layers and embeddings")
           .at_least(0)
           .below(1),
       fleet::field<&O::label_smoothing>("label_smoothing", "label smoothing factor")
           .at_least(0)
           .below(1)}};
  return list;
}

apps::Transformer make_model(const Options& own, int64_t vocab, int64_t seq) {
  apps::TransformerOptions options;
  if (own.model == "small") {
    options = {.width = 128, .heads = 4, .encoder_layers = 2, .decoder_layers = 2};
  }
  if (own.layers > 0) options.encoder_layers = options.decoder_layers = own.layers;
  if (own.hidden > 0) options.width = own.hidden;
  if (own.heads > 0) options.heads = own.heads;
  options = own.model == "big" ? apps::transformer_big_options(options) : options.resolved();
  options.feed_forward = 4 * options.width;
  options.source_vocab = options.target_vocab = vocab;
  options.max_positions = std::max(options.max_positions, seq + 1);
  options.dropout = own.dropout;
  options.label_smoothing = own.label_smoothing;
  return apps::Transformer(options);
}

int body(int argc, char** argv) {
  Options own;
  apps::TransformerDataOptions pairs;
  fleet::RunOptions run{.log_every = 1};
  const auto config = fleet::parse_train_configs(
      argc, argv, {{"Model", own}, {"Data", pairs}, {"Run", run}},
      {.lr = 1e-3, .beta2 = 0.98, .batch_size = 64},
      {.about = "trains the Transformer to translate",
       .examples = {"{} --max_updates 300",
                    "fleetrun --nproc_per_node 2 {} --max_updates 50 --recompute"},
       .reads = {"lr", "beta1", "beta2", "epsilon", "batch_size", "epochs", "seed", "snapshots"}});
  fleet::init();
  torch::manual_seed(config.seed + fleet::worker_index());
  auto data = apps::load_transformer_data(pairs, config);
  auto model = make_model(own, data.vocab, pairs.seq);
  run.load(model);
  auto optimizer = fleet::distributed_optimizer(
      fleet::optim::Adam(model,
                         {.beta1 = config.beta1, .beta2 = config.beta2, .epsilon = config.epsilon}),
      model.with_checkpoints(config.strategy));
  apps::train_transformer(model, data, optimizer, config, run);
  run.save_weights(model);
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
