// SPDX-License-Identifier: Apache-2.0
// One cell of the large-batch table: a small net on Fashion-MNIST, a fixed number of epochs, one
// batch size, one update rule. scripts/large_batch.py runs them all.
//
//   build/bin/large_batch --rule lars --batch_size 8192 --lr 0.4
//   build/bin/large_batch --rule momentum --batch_size 256 --lr 0.1 --results results.jsonl

#include <fleet/core/text/format.h>
#include <fleet/fleet.h>
#include <fleet/io/output_check.h>

#include <cmath>
#include <fstream>

#include <torch/nn.h>

namespace {

namespace nn = torch::nn;
namespace optim = fleet::optim;

// The last images of the training set: rates are chosen by them, so that the test set is only read.
constexpr int64_t kHeldOut = 5000;

// What one batch norm sees of a batch, however large that is: the net's function and the noise in
// it are then the same in all cells of the table, and only the updates differ.
constexpr int64_t kNormBatch = 256;

// A fifth of the training set, to take batch norm's statistics from when all is done.
constexpr int64_t kForStatistics = 10000;

struct Options {
  std::string rule = "lars";
  double warmup = 0.25;
  double weight_decay = 5e-4;
  double lars_coeff = 0.1;
  std::string results = {};
  std::string data_dir = fleet::kFashionMnistDir;
};

const fleet::FieldList& fields_of(const Options*) {
  using O = Options;
  static const fleet::FieldList list{
      "app",
      {fleet::field<&O::rule>("rule", "update rule").one_of({"momentum", "lars", "lamb"}),
       fleet::field<&O::warmup>(
           "warmup", "warmup ratio: fraction of updates with rising learning rate, up to --lr")
           .at_least(0)
           .below(1),
       fleet::field<&O::weight_decay>("weight_decay", "weight decay, but for biases and norms")
           .at_least(0),
       fleet::field<&O::lars_coeff>("lars_coeff", "LARS' trust coefficient").above(0),
       fleet::field<&O::results>("results", "file to add a line of JSON to"),
       fleet::field<&O::data_dir>("data_dir", "folder with the four IDX files")}};
  return list;
}

std::shared_ptr<const fleet::Dataset> part_of(const fleet::InMemoryImages& images, int64_t first,
                                              int64_t size) {
  return std::make_shared<fleet::InMemoryImages>(images.pixels().narrow(0, first, size),
                                                 images.labels().narrow(0, first, size),
                                                 fleet::kFashionMnistStatistics);
}

// Small, so that the whole table takes an hour or two on one core.
nn::Sequential make_net() {
  const auto conv = [](int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
    return nn::Conv2d(
        nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(false));
  };
  return nn::Sequential({{"conv1", conv(1, 8, 5, 3, 1)},  // 8 x 9 x 9
                         {"relu1", nn::ReLU()},
                         {"norm1", nn::BatchNorm2d(8)},
                         {"conv2", conv(8, 16, 3, 1, 0)},  // 16 x 7 x 7
                         {"relu2", nn::ReLU()},
                         {"norm2", nn::BatchNorm2d(16)},
                         {"flatten", nn::Flatten()},
                         {"head", nn::Linear(16 * 7 * 7, 10)}});
}

std::unique_ptr<optim::Optimizer> make_optimizer(nn::Sequential& net, const Options& own,
                                                 const fleet::TrainConfig& config) {
  if (own.rule == "lars") {
    return std::make_unique<optim::Lars>(net,
                                         optim::LarsOptions{.momentum = config.momentum,
                                                            .lars_coeff = own.lars_coeff,
                                                            .lars_weight_decay = own.weight_decay});
  }
  if (own.rule == "lamb") {
    return std::make_unique<optim::Lamb>(net,
                                         optim::LambOptions{.beta1 = config.beta1,
                                                            .beta2 = config.beta2,
                                                            .epsilon = config.epsilon,
                                                            .lamb_weight_decay = own.weight_decay});
  }
  // LARS and LAMB leave biases and norms out of decay by themselves; here it takes their names.
  const optim::ParameterGroup bare{.names = {"norm", "bias"}, .weight_decay = 0};
  return std::make_unique<optim::Momentum>(
      net, optim::MomentumOptions{
               .momentum = config.momentum, .weight_decay = own.weight_decay, .groups = {bare}});
}

// Up to `peak` in even steps, none of them at rate 0: there may be only two dozen updates.
optim::Schedule make_schedule(double peak, int64_t updates, double warmup) {
  const auto up = std::llround(warmup * static_cast<double>(updates));
  return optim::warmup(up, optim::linear({.lr = peak, .updates = updates - up}),
                       {.start_lr = peak / static_cast<double>(up + 1)});
}

fleet::Loss loss_of(nn::Sequential& net, const fleet::Batch& batch) {
  auto sum = torch::zeros({});
  for (int64_t begin = 0; begin < batch.size(); begin += kNormBatch) {
    const auto part = batch.slice(begin, std::min(begin + kNormBatch, batch.size()));
    sum = sum + nn::functional::cross_entropy(
                    net->forward(part.data), part.target,
                    nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  }
  return fleet::WeightedLoss{.sum = sum, .weight = static_cast<double>(batch.size())};
}

// Running statistics trail the weights, by much where each update is a large one. So they are taken
// anew: the mean over the batches of `data` that pass the finished net. Every rank takes all of
// them, so that all have the same statistics.
void update_batch_norm(nn::Sequential& net, std::shared_ptr<const fleet::Dataset> data) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : net->modules(/*include_self=*/false)) {
    if (auto* norm = module->as<nn::BatchNorm2d>()) {
      norm->reset_running_stats();
      norm->options.momentum(std::nullopt);  // a plain mean of all that comes
    }
  }
  fleet::DataLoader loader(std::move(data), {.batch_size = kNormBatch, .world_size = 1});
  net->train();
  for (const auto& batch : loader.epoch(0)) net->forward(batch.data);
}

double percent_correct(nn::Sequential& net, std::shared_ptr<const fleet::Dataset> data) {
  const torch::NoGradGuard no_grad;
  fleet::Accuracy accuracy;
  fleet::DataLoader loader(std::move(data), {.batch_size = 500, .shuffle = false});
  net->eval();
  for (const auto& batch : loader.epoch(0)) accuracy.add(net->forward(batch.data), batch.target);
  fleet::all_reduce_sum(accuracy.counts());
  return 100 * accuracy.top(1);
}

struct Result {
  double loss = 0;  // mean over the last epoch
  double held_out = 0;
  double test = 0;
  bool diverged = false;
};

// Lines are added to those of other runs.
void check_results(const std::string& file) {
  fleet::check_output_file({file, "--results", "app"});
  if (!std::ofstream(file, std::ios::app)) {
    throw fleet::UsageError("app", fleet::format("--results: cannot write to {}", file));
  }
}

void write_result(const Options& own, const fleet::TrainConfig& config, int64_t batch,
                  int64_t updates, double seconds, const Result& result) {
  const auto line = fleet::format(
      R"({{"rule": "{}", "batch": {}, "lr": {}, "seed": {}, "epochs": {}, "updates": {}, )"
      R"("held_out": {:.2f}, "test": {:.2f}, "loss": {:.4f}, "diverged": {}, "seconds": {:.1f}}})",
      own.rule, batch, config.lr, config.seed, config.epochs, updates, result.held_out, result.test,
      result.loss, result.diverged, seconds);
  fleet::log::plain(line);
  if (own.results.empty() || !fleet::is_first_worker()) return;
  std::ofstream file(own.results, std::ios::app);
  file << line << std::endl;
  if (!file) throw fleet::Error("app", fleet::format("cannot write to {}", own.results));
}

int body(int argc, char** argv) {
  Options own;
  const auto config = fleet::parse_train_configs(
      argc, argv, own,
      {.lr = 0.4, .beta2 = 0.95, .epsilon = 1e-6, .batch_size = 8192, .epochs = 16},
      {.about = "trains a small net with large batches, for scripts/large_batch.py",
       .examples = {"large_batch --rule lars --batch_size 8192 --lr 0.4",
                    "large_batch --rule momentum --batch_size 256 --lr 0.1 --results out.jsonl"},
       .reads = {"lr", "momentum", "beta1", "beta2", "epsilon", "batch_size", "epochs", "seed"}});
  if (!own.results.empty()) check_results(own.results);
  fleet::init();
  const auto images = fleet::load_fashion_mnist(own.data_dir, fleet::Phase::kTrain);
  const int64_t kept = images->size() - kHeldOut;
  const auto test = fleet::load_fashion_mnist(own.data_dir, fleet::Phase::kTest);
  fleet::DataLoader train(part_of(*images, 0, kept),
                          {.batch_size = config.batch_size, .seed = config.seed});

  torch::manual_seed(config.seed);
  auto net = make_net();
  auto optimizer = fleet::distributed_optimizer(make_optimizer(net, own, config), config.strategy);
  const int64_t updates = config.epochs * train.batches_per_epoch();
  optimizer.set_schedule(make_schedule(config.lr, updates, own.warmup));

  const auto begin = std::chrono::steady_clock::now();
  Result result;
  try {
    for (int64_t epoch = 0; epoch < config.epochs; ++epoch) {
      fleet::WeightedMean loss;
      for (const auto& batch : train.epoch(epoch)) {
        const auto report = optimizer.minimize(
            batch, [&](const fleet::Batch& share) { return loss_of(net, share); });
        loss.add(report.own_loss, report.own_weight);
      }
      optimizer.end_epoch();
      fleet::all_reduce_sum(loss.sums());
      result.loss = loss.value();
      fleet::log::info("train", fleet::format("epoch {}: loss {:.4f}", epoch + 1, result.loss));
    }
    update_batch_norm(net, part_of(*images, 0, kForStatistics));
    result.held_out = percent_correct(net, part_of(*images, kept, kHeldOut));
    result.test = percent_correct(net, test);
  } catch (const fleet::UsageError&) {
    throw;  // what was asked for cannot be trained
  } catch (const fleet::Error& error) {
    // A loss that is not finite ends the run: that too is a result.
    fleet::log::warn("train", error.what());
    result.diverged = true;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  write_result(own, config, config.batch_size * fleet::worker_num(), updates, took.count(), result);
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
