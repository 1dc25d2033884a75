// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one place that checks the version of LibTorch. What depends on that version, or reaches below
// LibTorch's public C++ API, is in this folder.

#include <torch/version.h>

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15)
#error "Fleet needs LibTorch 2.15 or newer"
#endif
