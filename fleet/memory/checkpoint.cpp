#include "fleet/memory/checkpoint.h"

#include "fleet/memory/tape.h"

namespace fleet {

torch::Tensor checkpoint(torch::Tensor x, std::string_view name) {
  if (auto* tape = memory::Tape::current()) tape->checkpoint(name, x);
  return x;
}

}  // namespace fleet
