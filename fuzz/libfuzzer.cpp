// SPDX-License-Identifier: Apache-2.0
// What libFuzzer calls: the one target that is linked into the program.

#include "fleet/core/log.h"

#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto& target = [&]() -> const fleet::fuzz::Target& {
    fleet::log::set_enabled(false);  // a million warnings about damaged input
    return fleet::fuzz::targets().front();
  }();
  target.run({data, size});
  return 0;
}
