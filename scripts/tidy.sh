#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over everything, tests included, or over the named sources: scripts/tidy.sh [file...].
# Everything takes about two hours of one core, too slow for ctest: sources are read several at a time, as they are compiled
# (FLEET_UNITY), since what costs is LibTorch's headers. Named sources are read one at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in clang++ clang-tidy run-clang-tidy; do
  command -v "$tool" >/dev/null || { echo "error: $tool is missing" >&2; echo "  fix: apt-get install clang clang-tidy" >&2; exit 1; }
done

# Clang's own compile commands, without the precompiled header: GCC's cannot be read, and with Clang's own every
# source would pay for all of LibTorch's declarations, 28 s even where it includes none of them.
unity=$([ $# -gt 0 ] && echo OFF || echo ON)
cmake --preset tidy -DFLEET_UNITY=$unity >/dev/null
checks=()
if [ $# -gt 0 ]; then
  files=("$@")
  patterns=("${files[@]/#/^$PWD/}")
else
  mapfile -t files < <(grep -o '"file": "[^"]*"' build-tidy/compile_commands.json | cut -d'"' -f4 | sort -u)
  patterns=("${files[@]/#/^}")
  checks=(-checks=-bugprone-suspicious-include)  # a group of sources includes them
fi
[ ${#files[@]} -gt 0 ] || { echo "error: no source to read" >&2; exit 1; }
status=0
run-clang-tidy -quiet -p build-tidy -j "$(nproc)" "${checks[@]}" "-header-filter=$PWD/(fleet|tools|bench|apps|examples|tests|docs)/.*\.(h|cpp|inl)$" \
  "${patterns[@]}" >build-tidy/tidy.out 2>build-tidy/tidy.err || status=$?
# A group repeats what it finds in a header: each finding once, with its lines.
awk '/^\/.*(error|warning): / {is_new = !seen[$0]++} is_new && !/^(clang-tidy|$)/' build-tidy/tidy.out
[ "$status" = 0 ] || { grep -v 'warnings generated' build-tidy/tidy.err | grep -v '^$' | head -20 >&2 || true; }
read_sources=$(grep -c '^clang-tidy' build-tidy/tidy.out || true)
echo "[tidy] $read_sources of ${#files[@]} sources or groups of sources in $SECONDS s"
[ "$read_sources" = ${#files[@]} ] || { echo "error: some sources have no compile command: is their target built?" >&2; exit 1; }
exit "$status"
