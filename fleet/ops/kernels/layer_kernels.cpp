// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/kernels/layer_kernels.h"

#include <string_view>

#include "fleet/core/error.h"
#include "fleet/ops/update/update_kernels.h"

namespace fleet::ops {

extern const LayerKernels kLayerKernels_generic;
#ifdef FLEET_X86
extern const LayerKernels kLayerKernels_avx2;
extern const LayerKernels kLayerKernels_avx512;
LayerKernels with_avx512_bf16(LayerKernels kernels);
#endif

const LayerKernels* layer_kernels_for(const char* name) {
  if (update_kernels_for(name) == nullptr) return nullptr;
#ifdef FLEET_X86
  if (std::string_view(name) == "avx512_bf16") {  // the function itself is compiled for that CPU
    static const LayerKernels kernels = with_avx512_bf16(kLayerKernels_avx512);
    return &kernels;
  }
#endif
  for (const auto* kernels : {
#ifdef FLEET_X86
           &kLayerKernels_avx512, &kLayerKernels_avx2,
#endif
           &kLayerKernels_generic}) {
    if (std::string_view(kernels->name) == name) return kernels;
  }
  return nullptr;
}

const LayerKernels& layer_kernels() {
  static const LayerKernels& kernels = []() -> const LayerKernels& {
    const auto* const chosen = layer_kernels_for(instruction_set());
    FLEET_ASSERT(chosen, "every instruction set has both kinds of kernels");
    return *chosen;
  }();
  return kernels;
}

}  // namespace fleet::ops
