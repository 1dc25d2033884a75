#pragma once

#include <string>

namespace fleet::comm {

/// Equal on processes that share a kernel and a pid namespace.
std::string host_id();

}  // namespace fleet::comm
