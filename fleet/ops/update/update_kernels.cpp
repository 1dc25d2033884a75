// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/update/update_kernels.h"

#include <array>
#include <cstdlib>
#include <string_view>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet::ops {

extern const UpdateKernels kUpdateKernels_generic;
#ifdef FLEET_X86
extern const UpdateKernels kUpdateKernels_avx2;
extern const UpdateKernels kUpdateKernels_avx512;
#endif

namespace {

struct Choice {
  const UpdateKernels* kernels;
  bool (*runs_here)();
};

// Best first.
const std::array kChoices = {
#ifdef FLEET_X86
    Choice{&kUpdateKernels_avx512,
           [] {
             return __builtin_cpu_supports("avx512f") != 0 &&
                    __builtin_cpu_supports("avx512bw") != 0 &&
                    __builtin_cpu_supports("avx512vl") != 0 &&
                    __builtin_cpu_supports("avx512dq") != 0;
           }},
    Choice{
        &kUpdateKernels_avx2,
        [] { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }},
#endif
    Choice{&kUpdateKernels_generic, [] { return true; }},
};

const UpdateKernels& choose() {
  if (const char* wish = std::getenv("FLEET_CPU"); wish != nullptr && *wish != '\0') {
    if (const auto* kernels = update_kernels_for(wish)) return *kernels;
    throw UsageError("ops",
                     format("FLEET_CPU is '{}', which this CPU or build does not have", wish),
                     "use generic, avx2 or avx512, or unset it");
  }
  for (const auto& choice : kChoices) {
    if (choice.runs_here()) return *choice.kernels;
  }
  return *kChoices.back().kernels;
}

}  // namespace

const UpdateKernels* update_kernels_for(const char* name) {
  for (const auto& choice : kChoices) {
    if (std::string_view(choice.kernels->name) == name && choice.runs_here()) return choice.kernels;
  }
  return nullptr;
}

const UpdateKernels& update_kernels() {
  static const UpdateKernels& kernels = choose();
  return kernels;
}

}  // namespace fleet::ops
