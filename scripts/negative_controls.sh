#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that cannot fail prove nothing: takes one protection of the tape away at a time, in a copy of its source that is linked
# into the tests of this build, and expects them to fail. A few minutes after a build: scripts/negative_controls.sh [name...].
set -euo pipefail
cd "$(dirname "$0")/.."
build=build
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# name|source|what is taken away, as sed
controls=(
  "generators-not-put-back|fleet/memory/replay/replay.cpp|s/{ from.restore(); }/{}/"
  "random-numbers-of-other-threads-not-noticed|fleet/memory/replay/replay.cpp|s/if (is_same) return finished;/return finished;/"
  "borrowed-memory-read-again|fleet/memory/tape/tape.cpp|s/if (values_.is_borrowed(input.value)) record.can_replay = false;//"
  "open-regions-without-records|fleet/memory/tape/retention.cpp|s/regions_.back()->set_open_records(&records_);//"
  "conjugation-lost|fleet/core/tensor_memory.cpp|s/if (is_conj) view._set_conj(true);//"
  "writes-not-waited-for|fleet/memory/offload/offload_file.cpp|s/core.wait_until_written(\*entry, lock);//"
  "statistics-not-copied|fleet/memory/replay/replay.cpp|s/if (input.statistics) return tensor.clone();//"
  "replay-inputs-not-copied-before-writes|fleet/memory/tape/copy_on_write.cpp|s/^      kept->copy_to_own_memory();/      (void)kept;/"
  "writes-not-replayed|fleet/memory/replay/replay_need.cpp|s/search_.need(provenance_.makers_of(origin.value), origin.time);/search_.need(provenance_.makers_of(origin.value).producer);/"
  "replays-do-not-ask-for-gradients|fleet/memory/replay/replay.cpp|s/if (input.requires_grad) {/if (input.requires_grad \&\& with_graph) {/"
  "stale-saves-not-refused|fleet/memory/tape/saved_slot.cpp|s/if (is_stale()) {/if (false) {/"
)

run_tests() {
  OMP_NUM_THREADS=1 timeout 600 "$1" --gtest_brief=1 --gtest_fail_fast \
    --gtest_filter="KeptValueTest.*:StockModels.*:Closures.*:ForeignTensors.*:RandomNumbers.*:SlowDisk.*:*RandomPrograms.*" >"$dir/log" 2>&1
}
run_tests "$build/bin/test_memory" || { cat "$dir/log" >&2; echo "the tests fail without a change" >&2; exit 1; }

link=$(ninja -C "$build" -t commands bin/test_memory | tail -1)
link=${link%% && cd *}  # without the listing of its tests
status=0
for control in "${controls[@]}"; do
  IFS='|' read -r name source change <<<"$control"
  [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
  sed "$change" "$source" >"$dir/changed.cpp"
  if cmp -s "$source" "$dir/changed.cpp"; then
    echo "$name: $source has no such line any more" >&2
    status=1
    continue
  fi
  # By the command of a group of sources (FLEET_UNITY), with the changed one in its place.
  compile=$(ninja -C "$build" -t commands lib/libfleet.so | grep -- '-c [^ ]*/unity_fleet_memory_tape_0.cpp') ||
    { echo "the build has no group of sources of fleet/memory/tape" >&2; exit 1; }
  group=$(sed -E 's/.* -c ([^ ]+).*/\1/' <<<"$compile")
  object=$(sed -E 's/.* -o ([^ ]+).*/\1/' <<<"$compile")
  compile=${compile//$group/$dir/changed.cpp}
  compile=${compile//$object/$dir/changed.o}
  (cd "$build" && eval "$compile" && eval "${link//bin\/test_memory/$dir/test_memory $dir/changed.o}") >"$dir/log" 2>&1 ||
    { cat "$dir/log" >&2; echo "$name: does not build" >&2; exit 1; }
  if run_tests "$dir/test_memory"; then
    echo "$name: NO TEST NOTICED"
    status=1
  else
    echo "$name: noticed by $(grep -m1 -o 'FAILED  \] [^ ,]*' "$dir/log" | sed 's/.*\] //' || echo 'a crash')"
  fi
done
exit "$status"
