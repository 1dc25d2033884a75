// SPDX-License-Identifier: Apache-2.0
// VGG16 on ImageNet's files, on Fashion-MNIST, or without any data. docs/applications/vgg16.md has
// runs.
//
//   build/bin/vgg16 --image_size 64 --width 16 --hidden 256 --max_updates 30
//   fleetrun --nproc_per_node 2 build/bin/vgg16 --image_size 32 --width 8 --hidden 128 --amp

#include <fleet/fleet.h>

namespace {

namespace apps = fleet::applications;

struct Options {
  bool batch_norm = true;
  int64_t width = 64;
  int64_t hidden = 4096;
  double dropout = 0.5;
  double label_smoothing = 0;
  double weight_decay = 5e-4;
};

const fleet::FieldList& fields_of(const Options*) {
  using O = Options;
  static const fleet::FieldList list{
      "app",
      {fleet::field<&O::batch_norm>("batch_norm", "batch norm after every convolution"),
       fleet::field<&O::width>("width", "channels of the first stage; the last has 8 times as many")
           .at_least(1),
       fleet::field<&O::hidden>("hidden", "width of the classifier").at_least(1),
       fleet::field<&O::dropout>("dropout", "dropout of the classifier").at_least(0).below(1),
       fleet::field<&O::label_smoothing>("label_smoothing", "label smoothing factor")
           .at_least(0)
           .below(1),
       fleet::field<&O::weight_decay>("weight_decay", "weight decay of Momentum; lars has its own")
           .at_least(0)}};
  return list;
}

apps::Vgg make_model(const Options& own, int64_t classes) {
  apps::VggOptions options{.batch_norm = own.batch_norm,
                           .hidden = own.hidden,
                           .classes = classes,
                           .dropout = own.dropout,
                           .label_smoothing = own.label_smoothing};
  for (auto& stage : options.stages) {
    for (auto& channels : stage) channels = channels * own.width / 64;
  }
  return apps::Vgg(options);
}

int body(int argc, char** argv) {
  Options own;
  auto [config, run, images, data] = apps::start_image_program(
      argc, argv, {{"Model", own}}, {.lr = 0.01},
      {.about = "trains VGG16 for image classification",
       .examples = {
           "{} --image_size 64 --width 16 --hidden 256 --max_updates 30",
           "fleetrun --nproc_per_node 2 {} --image_size 32 --width 8 --hidden 128 --amp"}});
  const auto model = make_model(own, images.classes);
  apps::train_on_images(model, data, own.weight_decay, config, run);
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
