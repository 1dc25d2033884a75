// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "fleet/data/batch.h"

namespace fleet {

/// Where samples come from; `DataLoader` decides which, in what order, and on which rank. `B` is
/// any type that holds several of them.
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
template <typename B>
class DatasetOf {
 public:
  virtual ~DatasetOf() = default;

  virtual int64_t size() const = 0;

  /// Changes when the samples do, so that a saved position is not applied to other samples;
  /// 0: unknown.
  virtual int64_t fingerprint() const { return 0; }

  /// The samples `indices`, each in [0, size()), in that order. One that cannot be read may be left
  /// out, if that too depends on the arguments alone.
  virtual B get(std::span<const int64_t> indices, int64_t epoch) const = 0;
};

using Dataset = DatasetOf<Batch>;

/// What DataLoader takes: a class with the two functions, derived from DatasetOf or not.
template <typename D>
concept DatasetLike = requires(const D& dataset, std::span<const int64_t> indices, int64_t epoch) {
  { dataset.size() } -> std::convertible_to<int64_t>;
  { dataset.get(indices, epoch) } -> std::move_constructible;
};

namespace detail {

template <typename D>
struct BatchOfDataset {
  static_assert(DatasetLike<D>,
                "DataLoader needs a data set with these two functions: "
                "int64_t size() const; YourBatch get(std::span<const int64_t> indices, "
                "int64_t epoch) const; and a YourBatch that can be moved (fleet/data/dataset.h)");
  using type = std::remove_cvref_t<decltype(std::declval<const D&>().get(std::span<const int64_t>(),
                                                                         int64_t{}))>;
};

/// A data set of any class behind the common interface.
template <typename D, typename B>
class AdaptedDataset final : public DatasetOf<B> {
 public:
  explicit AdaptedDataset(std::shared_ptr<const D> dataset) : dataset_(std::move(dataset)) {}

  int64_t size() const override { return static_cast<int64_t>(dataset_->size()); }
  int64_t fingerprint() const override {
    if constexpr (requires { dataset_->fingerprint(); }) {
      return static_cast<int64_t>(dataset_->fingerprint());
    }
    return 0;
  }
  B get(std::span<const int64_t> indices, int64_t epoch) const override {
    return dataset_->get(indices, epoch);
  }

 private:
  std::shared_ptr<const D> dataset_;
};

}  // namespace detail

/// What `get` of a data set returns; a class that is none does not compile, and says why.
template <typename D>
using BatchOf = typename detail::BatchOfDataset<std::remove_cv_t<D>>::type;

/// `dataset` as DataLoader holds it.
template <typename D>
std::shared_ptr<const DatasetOf<BatchOf<D>>> as_dataset(std::shared_ptr<D> dataset) {
  using Plain = std::remove_cv_t<D>;
  if constexpr (std::derived_from<Plain, DatasetOf<BatchOf<D>>>) {
    return dataset;
  } else if (dataset == nullptr) {
    return nullptr;
  } else {
    return std::make_shared<detail::AdaptedDataset<Plain, BatchOf<D>>>(std::move(dataset));
  }
}

}  // namespace fleet
