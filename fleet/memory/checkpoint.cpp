#include "fleet/memory/checkpoint.h"

namespace fleet {

torch::Tensor checkpoint(torch::Tensor x, std::string_view) { return x; }

}  // namespace fleet
