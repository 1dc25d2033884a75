// SPDX-License-Identifier: Apache-2.0
// ResNet on ImageNet's files, on Fashion-MNIST, or without any data. docs/applications/resnet50.md
// has runs.
//
//   build/bin/resnet50 --image_size 64 --max_updates 30
//   fleetrun --nproc_per_node 2 build/bin/resnet50 --data fashion_mnist --depth 18 --width 16

#include <fleet/fleet.h>

#include <algorithm>

namespace {

namespace apps = fleet::applications;

struct Options {
  int64_t depth = 50;
  int64_t width = 64;
  bool zero_init_last_norm = true;
  double label_smoothing = 0;
  double weight_decay = 1e-4;
};

const fleet::FieldList& fields_of(const Options*) {
  using O = Options;
  static const fleet::FieldList list{
      "app",
      {fleet::field<&O::depth>("depth", "18, 50, 101 or 152 layers").at_least(18).at_most(152),
       fleet::field<&O::width>("width", "channels of the first stage").at_least(1),
       fleet::field<&O::zero_init_last_norm>("zero_init_last_norm",
                                             "zero-initialize the last norm of each block"),
       fleet::field<&O::label_smoothing>("label_smoothing", "label smoothing factor")
           .at_least(0)
           .below(1),
       fleet::field<&O::weight_decay>("weight_decay", "weight decay of Momentum; lars has its own")
           .at_least(0)}};
  return list;
}

constexpr int64_t kDepths[] = {18, 50, 101, 152};

apps::Resnet make_model(const Options& own, int64_t classes) {
  if (std::ranges::find(kDepths, own.depth) == std::end(kDepths)) {
    throw fleet::UsageError("app", fleet::format("there is no ResNet of {} layers", own.depth),
                            "use --depth 18, 50, 101 or 152");
  }
  return apps::Resnet(
      apps::resnet_options(own.depth, {.classes = classes,
                                       .width = own.width,
                                       .zero_init_last_norm = own.zero_init_last_norm,
                                       .label_smoothing = own.label_smoothing}));
}

int body(int argc, char** argv) {
  Options own;
  auto [config, run, images, data] = apps::start_image_program(
      argc, argv, {{"Model", own}}, {.lr = 0.1},
      {.about = "trains ResNet for image classification",
       .examples = {"{} --image_size 64 --max_updates 30",
                    "fleetrun --nproc_per_node 2 {} --depth 18 --image_size 32 --amp"}});
  const auto model = make_model(own, images.classes);
  apps::train_on_images(model, data, own.weight_decay, config, run);
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
