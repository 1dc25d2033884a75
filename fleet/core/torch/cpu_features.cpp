// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/torch/cpu_features.h"

#include <ATen/cpu/Utils.h>

namespace fleet::compat {

std::string missing_instructions(torch::ScalarType dtype) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto has = [&](const char* name) {
    const auto place = capabilities.find(name);
    return place != capabilities.end() && place->second.isBool() && place->second.toBool();
  };
  if (!has("sse2")) return "";  // no x86
  if (dtype == torch::kBFloat16 && !has("avx512_bf16") && !has("amx_bf16")) {
    return "AVX-512 BF16 or AMX";
  }
  if (dtype == torch::kHalf && !has("avx512_fp16") && !has("amx_fp16")) {
    return "AVX-512 FP16 or AMX-FP16";
  }
  return "";
}

}  // namespace fleet::compat
