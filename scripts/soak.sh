#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Disturbs trainings and counts what they lose. Not a test: it takes as long as it is told to.
#
#   scripts/soak.sh [faults|disk|link|damage|goodput]... [--count N] [--seed S] [--seconds T] [--minutes M] [--rows FILE]
#
# Without a name all of them. --count: faults in each setup (20); --seconds: a soak begins no new job after so many (540), so that
# each command ends within ten minutes; --minutes: that goodput is measured for (4). Another --seed goes on with other faults: a soak of
# 1,000 is 1,000 in all rows of FILE (build/soak.jsonl), to which every soak appends what was tried and what was lost, and from which
# scripts/reliability.py makes the table of docs/reliability.md. `disk` and `link` need root. A first look: --count 5 --minutes 1.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh

names=() count=20 seed=1 seconds=540 minutes=4 rows=build/soak.jsonl
while [ $# -gt 0 ]; do
  case "$1" in
    --count) count=$2; shift 2 ;;
    --seed) seed=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    --rows) rows=$2; shift 2 ;;
    faults | disk | link | damage | goodput) names+=("$1"); shift ;;
    *) fail "unknown word $1" "see the first lines of $0" ;;
  esac
done
[ ${#names[@]} -gt 0 ] || names=(damage faults disk link goodput)
install_packages "${packages_to_run[@]}" "${packages_to_test[@]}"
fetch_libtorch
configure_and_build soak

status=0
soak() {
  build/bin/soak --count "$count" --seed "$seed" --seconds "$seconds" --minutes "$minutes" --rows "$rows" "$@" 2>>build/soak.log || status=1
}
for name in "${names[@]}"; do
  case "$name" in
    faults) for ranks in 2 4; do soak --what faults --ranks "$ranks"; soak --what faults --ranks "$ranks" --elastic; done ;;
    goodput) soak --what goodput; soak --what goodput --elastic ;;
    *) soak --what "$name" ;;
  esac
done
exit "$status"
