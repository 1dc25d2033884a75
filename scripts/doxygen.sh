#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The reference of fleet/fleet.h and of every header that it includes, as HTML: scripts/doxygen.sh [FOLDER], build/reference by
# default, in the groups of docs/api/groups.dox, which has each of them or its folder. A warning is a failure, but for members that have
# no comment: a name that says enough needs none. Takes about 10 s.
set -euo pipefail
output=$(realpath -m "${1:-$(dirname "$0")/../build/reference}")
cd "$(dirname "$0")/.."
command -v doxygen >/dev/null || { echo "skipped: doxygen is not installed (apt-get install doxygen)"; exit 77; }
mkdir -p "$output"

# headers FILE...: the files and, level by level, what they include of Fleet.
headers() {
  local seen next
  seen=$(printf '%s\n' "$@" | sort -u)
  while next=$(printf '%s\n' "$seen" | xargs sed -n 's/^#include "\(fleet\/.*\)"$/\1/p' | cat - <(printf '%s\n' "$seen") | sort -u); [ "$next" != "$seen" ]; do
    seen=$next
  done
  printf '%s\n' "$seen"
}

public=$(headers fleet/fleet.h)
sed -n 's/.*@file \([^ ]*\).*/\1/p' docs/api/groups.dox >"$output/by_line"
sed -n 's/.*@dir \([^ ]*\).*/^\1\//p' docs/api/groups.dox >"$output/folders"
printf '%s\n' "$public" | grep -f "$output/folders" | grep -vxFf "$output/by_line" >"$output/by_folder" || true
if ! diff <(printf '%s\n' "$public") <(sort "$output/by_line" "$output/by_folder") >"$output/ungrouped"; then
  echo "docs/api/groups.dox does not list the public headers (<: without a group, >: not public, or twice):"
  cat "$output/ungrouped"
  exit 1
fi
{
  cat docs/Doxyfile
  printf 'INPUT = %s\nOUTPUT_DIRECTORY = "%s"\n' "docs/api/groups.dox $(printf '%s' "$public" | tr '\n' ' ')" "$output"
} | doxygen - >"$output/log" 2>&1 || { cat "$output/log" >&2; exit 1; }
if sed "s#^$PWD/##" "$output/log" | grep -v -e '^ *$' -e 'Member .* is not documented' >"$output/warnings"; then
  cat "$output/warnings"
  exit 1
fi
echo "$output/html/index.html"
