#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Feeds readers with inputs that libFuzzer invents, under the address and undefined sanitizers, each for so many inputs:
#
#   scripts/fuzz.sh [NAME...|all] [--runs 1000000] [--seconds 0] [--seed 1] [--rows FILE]
#
# --seconds: at most so many per reader; 0: no limit. A run goes on with the inputs that earlier ones found (build-fuzz/corpus), so that
# a long one can be cut into pieces with a --seed each. Prints a row per reader and appends it to FILE (build-fuzz/rows.jsonl), from which
# scripts/reliability.py makes the table of docs/reliability.md. An input that shows a mistake is left in build-fuzz/findings;
# build-fuzz/bin/fuzz_NAME FILE runs it again.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh

names=() runs=1000000 seconds=0 seed=1 rows=build-fuzz/rows.jsonl
while [ $# -gt 0 ]; do
  case "$1" in
    --runs) runs=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --seed) seed=$2; shift 2 ;;
    --rows) rows=$2; shift 2 ;;
    -*) fail "unknown flag $1" "see the first lines of $0" ;;
    *) names+=("$1"); shift ;;
  esac
done
mapfile -t known < <(sed -n 's/^  \([a-z_]*\))\{0,1\}$/\1/p' fuzz/targets.cmake)
if [ ${#names[@]} = 0 ] || [ "${names[0]}" = all ]; then names=("${known[@]}"); fi
for name in "${names[@]}"; do
  [[ " ${known[*]} " == *" $name "* ]] || fail "no reader is called $name" "one of: ${known[*]}"
done

install_packages "${packages_to_run[@]}" clang libclang-rt-14-dev
fetch_libtorch
cmake --preset fuzz >/dev/null
cmake --build build-fuzz --target "${names[@]/#/fuzz_}" >build-fuzz/build.log || { tail -40 build-fuzz/build.log >&2; fail "the build failed"; }

scratch=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)" fleet-fuzz-XXXXXX)
trap 'rm -rf "$scratch"' EXIT
mkdir -p build-fuzz/findings
status=0
printf '%-20s %10s %8s %9s %7s %9s\n' reader inputs seconds inputs/s edges findings
for name in "${names[@]}"; do
  mkdir -p "build-fuzz/corpus/$name"
  log=build-fuzz/corpus/$name.log
  begin=$(date +%s.%N)
  findings=0
  # An allocation above 64 MB is out of proportion to inputs of at most 4 KB, which inflate to 4 MB.
  TMPDIR=$scratch ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=8 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 \
    "build-fuzz/bin/fuzz_$name" -runs="$runs" -max_total_time="$seconds" -seed="$seed" -max_len=4096 -timeout=10 \
    -malloc_limit_mb=64 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="build-fuzz/findings/$name-" \
    "build-fuzz/corpus/$name" "fuzz/corpus/$name" >"$log" 2>&1 || findings=1
  took=$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN {printf "%.1f", b - a}')
  inputs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
  edges=$(grep -o ' cov: [0-9]*' "$log" | tail -1 | grep -o '[0-9]*$' || echo 0)
  per_second=$(awk -v n="${inputs:-0}" -v s="$took" 'BEGIN {printf "%.0f", n / s}')
  printf '%-20s %10s %8s %9s %7s %9s\n' "$name" "${inputs:-0}" "$took" "$per_second" "$edges" "$findings"
  printf '{"kind": "fuzz", "reader": "%s", "inputs": %s, "seconds": %s, "edges": %s, "findings": %s, "seed": %s, "cores": %s, "date": "%s"}\n' \
    "$name" "${inputs:-0}" "$took" "$edges" "$findings" "$seed" "$(nproc)" "$(date +%F)" >>"$rows"
  if [ "$findings" != 0 ]; then
    status=1
    grep -E 'ERROR: |SUMMARY|runtime error|what\(\)|Test unit written|terminate called' "$log" | sed 's/^/  /' >&2 || tail -5 "$log" >&2
  fi
done
exit "$status"
