# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh and test.sh: Debian packages, LibTorch in .deps/, and the build. Every step is skipped when
# its result is already there, and leaves nothing half-done behind when it is interrupted.

fail() { printf 'error: %s\n' "$1" >&2; [ $# -lt 2 ] || printf '  fix: %s\n' "$2" >&2; exit 1; }
say() { printf '[setup] %s\n' "$*"; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# install_packages NAME...: asks dpkg first, so that a second run touches no network.
install_packages() {
  local missing=() name
  command -v dpkg-query >/dev/null || {
    say "not a Debian system: expecting these to be installed: $*"
    return 0
  }
  for name in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
    fail "these Debian packages are missing and installing them needs root: ${missing[*]}" \
      "run as root: apt-get install --no-install-recommends ${missing[*]}"
  fi
  say "installing ${missing[*]}"
  as_root apt-get update -q >/dev/null
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}" "see the lines above; run the command again once they install"
}

# fetch_libtorch: the wheels of deps.lock, checked against their hashes, unpacked into .deps/libtorch. Finished
# wheels are kept until all of them are unpacked, so an interrupted download resumes with the wheel that is missing.
fetch_libtorch() {
  local stamp have
  stamp=$(sha256sum deps.lock | cut -d' ' -f1)
  have=$(cat .deps/libtorch/.stamp 2>/dev/null || true)
  [ "$have" != "$stamp" ] || return 0
  [ "$(df -Pk . | awk 'NR==2 {print $4}')" -gt 3000000 ] || fail "less than 3 GB free here; LibTorch needs 2 GB while it is unpacked"
  mkdir -p .deps/wheels
  say "fetching LibTorch (550 MB) into .deps/"
  local line
  grep -E '^[a-z]' deps.lock | while read -r line; do
    local file
    file=$(find .deps/wheels -name "$(printf '%s' "$line" | sed -E 's/==([^ ]+).*/-\1/; s/-([a-z])/_\1/g')-*.whl" | head -1)
    if [ -n "$file" ] && printf '%s' "$line" | grep -q "$(sha256sum "$file" | cut -d' ' -f1)"; then continue; fi
    printf '%s\n' "$line" >.deps/wheels/wanted.txt
    python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --python-version 3.11 --implementation cp \
      --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
      -d .deps/wheels -r .deps/wheels/wanted.txt || fail "could not fetch ${line%% *}" "check the network and run the command again"
  done || exit 1
  rm -rf .deps/libtorch.partial && mkdir -p .deps/libtorch.partial
  local wheel
  for wheel in .deps/wheels/*.whl; do
    python3 - "$wheel" .deps/libtorch.partial <<'PY'
import sys, zipfile
wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    wanted = [n for n in archive.namelist() if n.startswith(("torch/include/", "torch/lib/", "torch/share/", "nvidia/"))]
    archive.extractall(target, wanted)
PY
  done
  printf '%s\n' "$stamp" >.deps/libtorch.partial/.stamp
  rm -rf .deps/libtorch && mv .deps/libtorch.partial .deps/libtorch && rm -rf .deps/wheels
  say "LibTorch is in .deps/libtorch"
}

# configure_and_build TARGET...: Release into build/. CMake and ninja pick up an interrupted build by themselves.
configure_and_build() {
  [ -f build/build.ninja ] || say "configuring"
  cmake --preset release ${FLEET_CMAKE_ARGS:-} >.deps/configure.log 2>&1 || { cat .deps/configure.log >&2; fail "configuring failed"; }
  say "building (the first time takes some minutes)"
  cmake --build build --target "$@" || fail "the build failed" "see the first error above"
}

# has_torch PYTHON: its torch is the one that the package is built for.
has_torch() {
  "$1" -c 'import sys, torch; sys.exit(torch.__version__.split("+")[0].rsplit(".", 1)[0] != "2.15")' 2>/dev/null
}

# find_python: prints the first Python that fits: FLEET_PYTHON, the one in .deps/, or the system's.
find_python() {
  local python
  for python in ${FLEET_PYTHON:-} .deps/python/bin/python python3; do
    if has_torch "$python" && "$python" -c 'import pytest' 2>/dev/null; then
      printf '%s\n' "$python"
      return 0
    fi
  done
  return 1
}

# fetch_python: a Python in .deps/python with torch and the libraries whose models the tests train.
fetch_python() {
  ! find_python >/dev/null || return 0
  [ "$(df -Pk . | awk 'NR==2 {print $4}')" -gt 8000000 ] || fail "less than 8 GB free here, which torch for Python needs"
  say "fetching torch for Python (2.7 GB, 5.5 GB unpacked) into .deps/python"
  rm -rf .deps/python
  # Without pip's cache, which would keep every wheel a second time; modules are compiled when they are imported.
  python3 -m venv .deps/python && .deps/python/bin/pip install -q --disable-pip-version-check --no-cache-dir --no-compile \
    'torch==2.15.*' torchvision transformers timm accelerate numpy pytest scikit-build-core || fail "could not install torch" "check the network and run the command again"
}

# test_python PYTHON ARGUMENT...: builds the package against LibTorch in .deps/, which is that of the same wheel, and tests it.
test_python() {
  local python
  python=$(realpath -s "$1")
  shift
  FLEET_CMAKE_ARGS="${FLEET_CMAKE_ARGS:-} -DFLEET_BUILD_PYTHON=ON -DPython_EXECUTABLE=$python -DFLEET_PYTHON_TORCH=$PWD/.deps/libtorch/torch" \
    configure_and_build fleet_python fleetrun cpp_twin
  # Compiled modules are kept, whatever the environment says: importing torch takes four times as long without.
  PYTHONDONTWRITEBYTECODE= PYTHONPATH=$PWD/build/python OMP_WAIT_POLICY=passive "$python" -m pytest -q tests/python "$@"
}

packages_to_run=(g++ cmake ninja-build ccache python3-pip ca-certificates nlohmann-json3-dev zlib1g-dev libjpeg62-turbo-dev libxxhash-dev libbenchmark-dev dataset-fashion-mnist)
packages_to_python=(python3-dev python3-venv)
packages_to_test=(libgtest-dev iproute2 procps clang-format doxygen python3-yaml)
