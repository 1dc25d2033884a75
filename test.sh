#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds everything and runs every test. Arguments go to ctest: ./test.sh -R Arena
# ./test.sh --python sets up a Python with torch in .deps/ and runs the tests of the package; further arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
if [ "${1:-}" = --python ]; then
  shift
  install_packages "${packages_to_run[@]}" "${packages_to_python[@]}"
  fetch_libtorch
  fetch_python
  test_python "$(find_python)" "$@"
  exit
fi
install_packages "${packages_to_run[@]}" "${packages_to_test[@]}"
fetch_libtorch
configure_and_build all
status=0
# Two tests at a time share the cores: threads that spin while they wait for each other would take them from the other test.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-3000}"
ctest --test-dir build --output-on-failure --timeout 300 -j 2 "$@" || status=$?
# A suite counts as passed where some of its tests were skipped: those are listed here.
sed -nE 's/^\[  SKIPPED \] ([^ ]+)$/[skipped] \1/p' build/Testing/Temporary/LastTest.log | sort -u
[ "$status" = 0 ] || exit "$status"
if [ $# -eq 0 ]; then
  if python=$(find_python); then
    test_python "$python"
  else
    say "the Python package was not tested: no Python with torch 2.15 and pytest was found; ./test.sh --python sets one up"
  fi
fi
