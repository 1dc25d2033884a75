#pragma once

#include <cstdint>
#include <span>

#include "fleet/data/batch.h"

namespace fleet {

/// Where samples come from; `DataLoader` decides which, in what order, and on which rank.
///
/// `get` is called from the loader's background thread and must be a function of its arguments
/// alone: a random crop, say, draws from (seed, epoch, index), never from a shared generator, so
/// that a sample looks the same whatever the number of ranks. It must accept no indices at all.
///
///   struct Parity : fleet::Dataset {
///     int64_t size() const override { return 1000; }
///     fleet::Batch get(std::span<const int64_t> indices, int64_t) const override {
///       auto x = torch::tensor(at::IntArrayRef(indices.data(), indices.size()), torch::kInt64);
///       return {x.to(torch::kFloat32).unsqueeze(1), x.remainder(2)};
///     }
///   };
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;

  /// Changes when the samples do, so that a position in other samples is not taken for one in
  /// these; 0 says nothing about them.
  virtual int64_t fingerprint() const { return 0; }

  /// The samples `indices`, each in [0, size()), in that order. One that cannot be had may be left
  /// out, if that follows from the arguments too.
  virtual Batch get(std::span<const int64_t> indices, int64_t epoch) const = 0;
};

}  // namespace fleet
