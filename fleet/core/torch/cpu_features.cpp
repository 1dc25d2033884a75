// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/torch/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <string_view>

#include <ATen/cpu/Utils.h>

namespace fleet::compat {
namespace {

constexpr auto kIsa = "ONEDNN_MAX_CPU_ISA";
constexpr auto kWithoutAmx = "AVX512_CORE_FP16";

bool limit_onednn() {
  if (!is_amx_broken(amx_info())) return false;
  if (const char* set = std::getenv(kIsa)) return std::string_view(set) == kWithoutAmx;
  return std::getenv("DNNL_MAX_CPU_ISA") == nullptr && ::setenv(kIsa, kWithoutAmx, 1) == 0;
}

// When the library is loaded: oneDNN reads the variable once, before its first op.
const bool g_is_limited = limit_onednn();

}  // namespace

AmxInfo amx_info() {
  AmxInfo info;
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return info;
  info.has_tiles = (edx >> 24U & 1U) != 0;
  if (__get_cpuid_count(0x1d, 0, &eax, &ebx, &ecx, &edx) == 0) return info;
  info.max_palette = eax;
  if (__get_cpuid_count(0x1d, 1, &eax, &ebx, &ecx, &edx) == 0) return info;
  info.max_tiles = ebx >> 16U;
#endif
  return info;
}

std::string amx_workaround() {
  if (!g_is_limited) return "";
  return "this CPU announces AMX without its palettes, as some virtual machines do, and bf16 would "
         "end with SIGILL: oneDNN is limited to AVX-512 (ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16)";
}

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
