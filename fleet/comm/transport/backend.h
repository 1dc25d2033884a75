// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}

namespace fleet::comm {

class Store;
struct CommunicatorOptions;

/// Throws when there is no backend of that name.
void check_backend(const std::string& name);

/// LibTorch's backend of a communicator, by `options.backend`: "gloo", or "nccl" from the plug-in
/// libfleet_nccl.so, which is built where a CUDA toolkit is found.
c10::intrusive_ptr<c10d::Backend> make_backend(const Store& store, int rank, int size,
                                               const CommunicatorOptions& options);

}  // namespace fleet::comm
