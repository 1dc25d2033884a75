#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# format.sh SOURCE_DIR: holds every tracked .h and .cpp against .clang-format.
set -euo pipefail
cd "$1"
command -v clang-format >/dev/null || { echo "skipped: clang-format is not installed"; exit 77; }
git rev-parse --is-inside-work-tree >/dev/null 2>&1 || { echo "skipped: not a git checkout, so no list of tracked files"; exit 77; }
git ls-files -z '*.h' '*.cpp' | xargs -0 -n 16 -P 2 clang-format --dry-run -Werror || {
  echo "fix: git ls-files '*.h' '*.cpp' | xargs clang-format -i"
  exit 1
}
