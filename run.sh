#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds, and trains with a batch that two small ranks could not hold: 8,192 images per update, by gradient merge,
# LARS and a memory budget. `./run.sh --plain` trains with batches of 64 instead. Further arguments go to the program.
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
install_packages "${packages_to_run[@]}"
fetch_libtorch
configure_and_build fleetrun fashion_mnist

if [ "${1:-}" = --plain ]; then
  shift
  exec build/bin/fleetrun --nproc_per_node 2 build/bin/fashion_mnist "$@"
fi
build/bin/fleetrun --nproc_per_node 2 build/bin/fashion_mnist --batch_size 4096 --gradient_merge --gradient_merge_configs.micro_batch_size 256 \
  --memory_budget 96MiB --lars --lars_configs.lars_coeff 0.02 --lr 2.5 --epochs 8 "$@"
cat <<'END'

Try next:
  ./run.sh --memory_budget 72MiB                                                 # the same batch in less memory: more is recomputed
  ./run.sh --plain --localsgd --localsgd_configs.k_steps 4                       # small batches, parameters averaged every fourth update
  build/bin/fashion_mnist --memory_budget 64MiB --batch_size 4096 --gradient_merge --plan_only   # what a plan would recompute, without training
END
