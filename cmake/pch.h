// SPDX-License-Identifier: Apache-2.0
// What nearly every source here includes, parsed once. Kept small on purpose: GCC instantiates
// again, in every source, each template that the precompiled header left pending: torch/nn/module.h
// would cost each source 2 s more, torch/torch.h 8 s. A source that needs them includes them
// itself.
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/base.h>
#include <torch/types.h>
