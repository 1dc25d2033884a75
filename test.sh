#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds everything and runs every test. Arguments go to ctest: ./test.sh -R Arena
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
install_packages "${packages_to_run[@]}" "${packages_to_test[@]}"
fetch_libtorch
configure_and_build all
exec ctest --test-dir build --output-on-failure --timeout 300 -j 2 "$@"
