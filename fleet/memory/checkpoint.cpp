// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/checkpoint.h"

#include "fleet/memory/tape/tape.h"

namespace fleet {

torch::Tensor checkpoint(torch::Tensor x, std::string_view name) {
  if (auto* tape = memory::Tape::current()) tape->checkpoint(name, x);
  return x;
}

}  // namespace fleet
