#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over everything that is shipped (the tests are not), or over the named sources: scripts/tidy.sh [file...].
# Takes about half an hour on two cores, too slow for ctest.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in clang++ clang-tidy run-clang-tidy; do
  command -v "$tool" >/dev/null || { echo "error: $tool is missing" >&2; echo "  fix: apt-get install clang clang-tidy" >&2; exit 1; }
done

# Clang's own compile commands, without the precompiled header: GCC's cannot be read, and with Clang's own every
# source would pay for all of LibTorch's declarations, 28 s even where it includes none of them.
cmake --preset tidy >/dev/null

files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files 'fleet/*.cpp' 'tools/*.cpp' 'bench/*.cpp' 'apps/*.cpp')
status=0
run-clang-tidy -quiet -p build-tidy -j "$(nproc)" "${files[@]/#/^$PWD/}" 2>build-tidy/tidy.err | grep -Ev '^(clang-tidy|$)' || status=${PIPESTATUS[0]}
[ "$status" = 0 ] || { grep -v 'warnings generated' build-tidy/tidy.err >&2 || true; }
echo "[tidy] ${#files[@]} sources in $SECONDS s"
exit "$status"
