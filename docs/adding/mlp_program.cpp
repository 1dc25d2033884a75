// SPDX-License-Identifier: Apache-2.0
// A perceptron on images, synthetic ones unless told otherwise.
//
//   fleetrun --nproc_per_node 2 build/bin/mlp_program --image_size 16 --classes 4 --max_updates 40

#include "docs/adding/mlp.h"

namespace {

namespace apps = fleet::applications;

int body(int argc, char** argv) {
  auto [config, run, images, data] = apps::start_image_program(
      argc, argv, {}, {.lr = 0.05}, {.about = "trains a perceptron on images"});
  const adding::Mlp model({.image_size = images.image_size, .classes = images.classes});
  apps::train_on_images(model, data, /*weight_decay=*/1e-4, config, run);
  fleet::shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return fleet::run_main(body, argc, argv); }
