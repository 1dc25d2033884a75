// SPDX-License-Identifier: Apache-2.0
// What nearly every source here includes, parsed once. Kept small on purpose: GCC instantiates
// again, in every source, each template that the precompiled header left pending. torch/torch.h
// costs 6 s more per source than this; a source that builds layers includes torch/nn.h itself.
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
#include <torch/nn/module.h>
#include <torch/types.h>
