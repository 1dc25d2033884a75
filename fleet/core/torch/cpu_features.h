// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <torch/types.h>

#include "fleet/core/torch/torch_version.h"

namespace fleet::compat {

/// What this CPU lacks to multiply fast in bf16 or half: "AVX-512 BF16 or AMX". Empty when it lacks
/// nothing, or is of a kind that is not known here.
std::string missing_instructions(torch::ScalarType dtype);

/// What the CPU says of AMX (CPUID leaves 7 and 1DH).
struct AmxInfo {
  bool has_tiles = false;
  unsigned max_palette = 0;  // 0: no shape of tiles can be chosen
  unsigned max_tiles = 0;    // of palette 1
};
AmxInfo amx_info();

/// Some virtual machines announce AMX and hide its palettes: oneDNN then computes with tiles that
/// it has not configured, and the first product in bf16 ends the process with SIGILL.
constexpr bool is_amx_broken(const AmxInfo& info) {
  return info.has_tiles && (info.max_palette == 0 || info.max_tiles == 0);
}

/// Where AMX is broken, oneDNN was limited to AVX-512 when this library was loaded: the sentence
/// that says so. Empty elsewhere, and where the user has set ONEDNN_MAX_CPU_ISA.
std::string amx_workaround();

}  // namespace fleet::compat
