#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# license.sh SOURCE_DIR: every tracked source names the licence in its first lines.
set -euo pipefail
cd "$1"
git rev-parse --is-inside-work-tree >/dev/null 2>&1 || { echo "skipped: not a git checkout, so no list of tracked files"; exit 77; }
missing=$(git ls-files -z '*.h' '*.cpp' '*.inl' '*.sh' '*.py' '*.cmake' '*CMakeLists.txt' |
  xargs -0 awk 'FNR <= 2 && /SPDX-License-Identifier: Apache-2\.0/ {found[FILENAME] = 1} FNR == 2 {nextfile} END {for (i = 1; i < ARGC; ++i) if (!found[ARGV[i]]) print ARGV[i]}')
[ -z "$missing" ] || { echo "without a line 'SPDX-License-Identifier: Apache-2.0':"; echo "$missing"; exit 1; }
