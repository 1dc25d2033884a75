// SPDX-License-Identifier: Apache-2.0
#include "fuzz/target.h"

namespace fleet::fuzz {
namespace {

std::vector<Target>& all() {
  static std::vector<Target> targets;
  return targets;
}

}  // namespace

Target::Target(const char* name, void (*run)(Bytes)) : name(name), run(run) {
  all().push_back(*this);
}

const std::vector<Target>& targets() { return all(); }

}  // namespace fleet::fuzz
