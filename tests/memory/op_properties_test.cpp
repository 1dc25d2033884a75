// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/op_properties.h"

#include <gtest/gtest.h>
#include <torch/library.h>

#include "fleet/memory/tape/op_record.h"

namespace fleet::memory {
namespace {

using Randomness = OpProperties::Randomness;

torch::Tensor clone_of(const torch::Tensor& x) { return x.clone(); }

TORCH_LIBRARY(fleet_properties_test, library) {
  library.def("unknown(Tensor x) -> Tensor", clone_of);
  library.def("known(Tensor x) -> Tensor", clone_of);
  library.def("random(Tensor x) -> Tensor", clone_of);
}

const OpTraits& traits_of(const char* name) {
  return OpTraits::of(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
}

TEST(OpPropertiesTest, OpsOutsideOfAtenUseRandomNumbersUnlessRegisteredOtherwise) {
  register_op("fleet_properties_test::known", {.randomness = Randomness::kNone});
  register_op("fleet_properties_test::random", {.randomness = Randomness::kGenerator});
  EXPECT_TRUE(traits_of("fleet_properties_test::unknown").uses_rng);
  EXPECT_FALSE(traits_of("fleet_properties_test::known").uses_rng);
  EXPECT_TRUE(traits_of("fleet_properties_test::random").uses_rng);
}

TEST(OpPropertiesTest, OpsOfLibTorchKeepTheirs) {
  EXPECT_TRUE(traits_of("aten::dropout").uses_rng);
  EXPECT_EQ(traits_of("aten::dropout").mask_save, 0);
  EXPECT_FALSE(traits_of("aten::linear").uses_rng);
  EXPECT_EQ(traits_of("aten::linear").mask_save, -1);
  EXPECT_TRUE(traits_of("aten::cross_entropy_loss").is_decomposed);
  const auto x = torch::ones({3, 4}), w = torch::ones({5, 4});
  EXPECT_EQ(traits_of("aten::linear").flops({x, w}, 15), 2 * 15 * 4);
  EXPECT_EQ(traits_of("aten::addmm").flops({torch::ones({5}), x, w.t()}, 15), 2 * 15 * 4);
  EXPECT_EQ(traits_of("aten::relu").flops, nullptr);
}

TEST(OpPropertiesTest, FusedOpsAreDeterministicAndCounted) {
  for (const char* name : {"fleet::dropout", "fleet::add_norm", "fleet::bias_gelu",
                           "fleet::attention", "fleet::linear_cross_entropy"}) {
    EXPECT_FALSE(traits_of(name).uses_rng) << name;
  }
  const auto q = torch::ones({2, 5, 3, 8}), k = torch::ones({2, 7, 3, 8});
  EXPECT_EQ(traits_of("fleet::attention").flops({q, k, k}, 0), 4 * 2 * 3 * 5 * 7 * 8);
}

}  // namespace
}  // namespace fleet::memory
