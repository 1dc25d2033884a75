#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests while the machine has other work: two busy loops, and a writer that waits for the disk.
#
#   scripts/busy.sh [--times 5] [--built] [CTEST ARGUMENT...]
#
# Builds first; --built: takes what is in build/. Ends with 1 when a test failed in any of the runs, each of which ends after two hours at the latest; build/busy-N.log has
# its output. Patience of the tests is doubled (FLEET_TEST_PATIENCE, unless it is set). scripts/busy.sh --times 1 -R 'comm|ranks' is a look.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh

times=5 built=
while :; do
  case "${1:-}" in
    --times)
      times=${2:-}
      [[ "$times" =~ ^[1-9][0-9]*$ ]] || fail "--times takes a number of runs, not '$times'" "scripts/busy.sh --times 5"
      shift 2
      ;;
    --built) built=1; shift ;;
    *) break ;;
  esac
done
if [ -z "$built" ]; then
  install_packages "${packages_to_run[@]}" "${packages_to_test[@]}"
  fetch_libtorch
  configure_and_build all
fi

export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-3000}"  # as in test.sh

load=() tests=
end_all() {
  kill ${tests:+"$tests"} "${load[@]}" 2>/dev/null || true
  wait ${tests:+"$tests"} "${load[@]}" 2>/dev/null || true
  rm -f build/busy.dd
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for _ in 1 2; do
  (while :; do :; done) &
  load+=($!)
done
# Its dd ends by itself, after 64 MB.
(while :; do dd if=/dev/zero of=build/busy.dd bs=1M count=64 oflag=dsync conv=notrunc status=none; done) &
load+=($!)

failed=0
for ((run = 1; run <= times; ++run)); do
  begin=$SECONDS
  status=0
  FLEET_TEST_PATIENCE=${FLEET_TEST_PATIENCE:-2} timeout 7200 ctest --test-dir build --no-tests=error --output-on-failure --timeout 900 -j 2 "$@" \
    >"build/busy-$run.log" 2>&1 &
  tests=$!  # in the background: a signal to this script must not wait for it
  wait "$tests" || status=$?
  tests=
  for pid in "${load[@]}"; do kill -0 "$pid" 2>/dev/null || fail "the load has ended before the tests (pid $pid)"; done
  if [ "$status" = 0 ]; then
    say "run $run of $times: passed, $((SECONDS - begin)) s"
  else
    failed=$((failed + 1))
    say "run $run of $times: failed ($status), $((SECONDS - begin)) s; build/busy-$run.log:"
    sed -n '/The following tests FAILED/,$p' "build/busy-$run.log"
  fi
done
[ "$failed" = 0 ] || fail "$failed of $times runs failed"
