// SPDX-License-Identifier: Apache-2.0
#pragma once

// Between interception.cpp, which knows who observes a thread, and the autograd engine, which asks.

#include <memory>

#include <torch/types.h>

namespace fleet::compat {

class SavedTensor;

/// Makes an engine of Fleet's LibTorch's default, as often as `uninstall_engine` follows. It asks
/// `save_observer_order` for every tensor that autograd saves, and passes everything else on to the
/// one that was the default before: in a Python process that is Python's own, with the user's
/// hooks.
void install_engine();
void uninstall_engine();

/// Whether this thread's SaveObserver is to see what autograd saves now.
enum class SaveObserverOrder { kNone, kAfterUserHooks, kFirst };
SaveObserverOrder save_observer_order();
/// Only where it is.
std::unique_ptr<SavedTensor> save_observed(const torch::Tensor& tensor);

}  // namespace fleet::compat
