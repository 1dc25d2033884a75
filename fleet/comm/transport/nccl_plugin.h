// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace fleet::comm {

/// What libfleet_nccl.so exports.
using NcclPluginMake = c10::intrusive_ptr<c10d::Backend> (*)(const c10::intrusive_ptr<c10d::Store>&,
                                                             int rank, int size,
                                                             std::chrono::milliseconds timeout);
inline constexpr const char* kNcclPluginSymbol = "fleet_make_nccl";

}  // namespace fleet::comm
