// The quick start: a small convolution net learns to tell ten kinds of clothing apart.
//
//   fleetrun --nproc_per_node 2 build/bin/fashion_mnist              # above 91 % in about a minute
//   build/bin/fashion_mnist --epochs 1 --gradient_merge --gradient_merge_configs.k_steps 4

#include <fleet/fleet.h>

#include <torch/nn.h>

namespace {

namespace nn = torch::nn;

struct Options {
  std::string data_dir = fleet::kFashionMnistDir;
};

const fleet::FieldList& fields_of(const Options*) {
  static const fleet::FieldList list{
      .area = "fashion_mnist",
      .fields = {fleet::field<&Options::data_dir>("data_dir", "folder with the four IDX files")}};
  return list;
}

// 28 x 28 pixels -> 16 x 14 x 14 -> 32 x 7 x 7 -> 64 x 7 x 7 -> 10 scores. Pooling comes before the
// norm, which then has a quarter of the work.
nn::Sequential make_net() {
  const auto conv = [](int64_t in, int64_t out) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
  };
  return nn::Sequential(conv(1, 16), nn::MaxPool2d(2), nn::BatchNorm2d(16), nn::ReLU(),   //
                        conv(16, 32), nn::MaxPool2d(2), nn::BatchNorm2d(32), nn::ReLU(),  //
                        conv(32, 64), nn::BatchNorm2d(64), nn::ReLU(),                    //
                        nn::Flatten(), nn::Linear(64 * 7 * 7, 10));
}

// The share of test images that are named rightly, over all ranks: each rank looks at its part.
double test_accuracy(nn::Sequential& net, fleet::DataLoader& test) {
  const torch::NoGradGuard no_grad;
  net->eval();
  fleet::Accuracy accuracy;
  for (const fleet::Batch& batch : test.epoch(0)) {
    accuracy.add(net->forward(batch.data), batch.target);
  }
  net->train();
  fleet::all_reduce_sum(accuracy.counts());
  return accuracy.top(1);
}

int body(int argc, char** argv) {
  Options own;
  const auto config = fleet::parse_train_configs(
      argc, argv, own, {.lr = 0.1, .momentum = 0.9, .batch_size = 64, .epochs = 4});
  fleet::init();
  const int rank = fleet::worker_index();
  const int ranks = fleet::worker_num();

  fleet::DataLoader train(
      fleet::load_fashion_mnist(own.data_dir, fleet::Phase::kTrain,
                                {.flip = true, .seed = config.seed}),
      {.batch_size = config.batch_size, .seed = config.seed, .rank = rank, .world_size = ranks});
  fleet::DataLoader test(fleet::load_fashion_mnist(own.data_dir, fleet::Phase::kTest),
                         {.batch_size = 500, .shuffle = false, .rank = rank, .world_size = ranks});

  torch::manual_seed(config.seed);
  auto net = make_net();
  auto optimizer = fleet::distributed_optimizer(
      fleet::optim::Momentum(net,
                             {.lr = config.lr, .momentum = config.momentum, .weight_decay = 5e-4}),
      config.strategy);

  const int64_t steps = config.epochs * train.batches_per_epoch();
  int64_t step = 0;
  double total_time_s = 0;
  for (int64_t epoch = 0; epoch < config.epochs; ++epoch) {
    fleet::Progress progress(fleet::format("epoch {}/{}", epoch + 1, config.epochs),
                             train.dataset().size(), {.speaks = fleet::is_first_worker()});
    for (const fleet::Batch& batch : train.epoch(epoch)) {
      optimizer.set_lr(config.lr * static_cast<double>(steps - step) / static_cast<double>(steps));
      const auto report = optimizer.minimize(batch, [&](const fleet::Batch& part) {
        return nn::functional::cross_entropy(net->forward(part.data), part.target);
      });
      total_time_s += report.seconds;
      progress.advance(batch.size() * ranks, fleet::format("loss {:.3f}", report.loss));
      if (++step % 100 == 0) {
        progress.print(fleet::step_line({.worker_index = rank,
                                         .step = step - 1,
                                         .cost = report.loss,
                                         .step_time_s = report.seconds,
                                         .total_time_s = total_time_s}));
      }
    }
    progress.finish();
    const double top1 = test_accuracy(net, test);
    fleet::log::info("test", fleet::format("epoch {}: top-1 {:.2f} %", epoch + 1, 100 * top1));
  }
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
