#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How long a source takes to compile that only includes a public header, and what of that is torch/types.h, which all of them need:
# scripts/header_time.sh [HEADER...], fleet/fleet.h by default. The median processor time of RUNS (5) compilations at -O2, without a
# precompiled header; CXX is the compiler, LIBTORCH the folder that has its include/. To be run while nothing else does.
set -euo pipefail
cd "$(dirname "$0")/.."
libtorch=${LIBTORCH:-$PWD/.deps/libtorch/torch}
[ -d "$libtorch/include" ] || { echo "no LibTorch in $libtorch: run scripts/setup.sh, or set LIBTORCH" >&2; exit 1; }
[ $# -gt 0 ] || set -- fleet/fleet.h
runs=${RUNS:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# seconds HEADER: the median.
seconds() {
  echo "#include \"$1\"" >"$work/source.cpp"
  local run TIMEFORMAT='%U %S'
  for ((run = 0; run < runs; ++run)); do
    { time "${CXX:-g++}" -std=c++20 -O2 -w -c "$work/source.cpp" -o "$work/source.o" -I. \
      -isystem "$libtorch/include" -isystem "$libtorch/include/torch/csrc/api/include" 2>"$work/errors"; } 2>&1 ||
      { cat "$work/errors" >&2; exit 1; }
  done | sort -n | awk '{cpu[NR] = $1 + $2} END {printf "%.2f\n", cpu[int((NR + 1) / 2)]}'
}

base=$(seconds torch/types.h)
printf '%-40s %6s s\n' torch/types.h "$base"
for header in "$@"; do
  took=$(seconds "$header")
  printf '%-40s %6s s, %s s above torch/types.h\n' "$header" "$took" "$(awk "BEGIN {printf \"%.2f\", $took - $base}")"
done
