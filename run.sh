#!/usr/bin/env bash
# Sets up, builds, and trains a small net on Fashion-MNIST with two ranks. Arguments go to the program.
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
install_packages "${packages_to_run[@]}"
fetch_libtorch
configure_and_build fleetrun fashion_mnist
exec build/bin/fleetrun --nproc_per_node 2 build/bin/fashion_mnist "$@"
