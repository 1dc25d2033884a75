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
  const char* name;
  const UpdateKernels* kernels;
  bool (*runs_here)();
};

#ifdef FLEET_X86
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0;
}
#endif

// Best first.
const std::array kChoices = {
#ifdef FLEET_X86
    // Layers multiply bfloat16 there; updates have nothing to gain from it.
    Choice{"avx512_bf16", &kUpdateKernels_avx512,
           [] { return has_avx512() && __builtin_cpu_supports("avx512bf16") != 0; }},
    Choice{"avx512", &kUpdateKernels_avx512, has_avx512},
    Choice{
        "avx2", &kUpdateKernels_avx2,
        [] { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }},
#endif
    Choice{"generic", &kUpdateKernels_generic, [] { return true; }},
};

const Choice* find(std::string_view name) {
  for (const auto& choice : kChoices) {
    if (choice.name == name && choice.runs_here()) return &choice;
  }
  return nullptr;
}

const Choice& choose() {
  if (const char* wish = std::getenv("FLEET_CPU"); wish != nullptr && *wish != '\0') {
    if (const auto* choice = find(wish)) return *choice;
    throw UsageError("ops",
                     format("FLEET_CPU is '{}', which this CPU or build does not have", wish),
                     "use generic, avx2, avx512 or avx512_bf16, or unset it");
  }
  for (const auto& choice : kChoices) {
    if (choice.runs_here()) return choice;
  }
  return kChoices.back();
}

const Choice& chosen() {
  static const Choice& choice = choose();
  return choice;
}

}  // namespace

const UpdateKernels* update_kernels_for(const char* name) {
  const auto* const choice = find(name);
  return choice ? choice->kernels : nullptr;
}

const char* instruction_set() { return chosen().name; }

const UpdateKernels& update_kernels() { return *chosen().kernels; }

}  // namespace fleet::ops
