// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/data/data_loader.h"

namespace fleet::testing {

/// 40 samples that never change.
class Numbers : public Dataset {
 public:
  int64_t size() const override { return 40; }
  Batch get(std::span<const int64_t> indices, int64_t) const override {
    const auto numbers =
        torch::tensor(at::IntArrayRef(indices.data(), indices.size()), torch::kLong);
    auto generator = at::detail::createCPUGenerator(5);
    const auto all = torch::randn({40, 6}, generator);
    return {all.index_select(0, numbers), numbers % 3};
  }
};

inline DataLoader<Batch> numbers_of(const std::shared_ptr<comm::Communicator>& comm,
                                    int64_t batch_size) {
  return DataLoader(
      std::make_shared<Numbers>(),
      {.batch_size = batch_size, .seed = 3, .rank = comm->rank(), .world_size = comm->size()});
}

}  // namespace fleet::testing
