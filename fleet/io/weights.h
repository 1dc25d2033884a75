// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fleet/core/model_handle.h"
#include "fleet/io/safetensors.h"

namespace fleet {

/// How the tensors of a model and those of a file match by name.
///
/// Files of other libraries are taken as they are: `LayerNorm.gamma` and `.beta` mean `.weight` and
/// `.bias`; `position_ids`, which follow from nothing but their length, may be there, and
/// `num_batches_tracked` may be absent. A tensor that a model has under several names needs one of
/// them; BERT's `cls.predictions.decoder` may be there as long as it equals what it is tied to.
struct WeightsMatch {
  /// A tensor of the model with the entry of the same name.
  struct Pair {
    NamedTensor own;
    const SafetensorsEntry* entry;
  };
  std::vector<Pair> pairs;
  std::vector<std::string> missing;     ///< the model's names that the file lacks
  std::vector<std::string> unexpected;  ///< names in the file that the model lacks
  std::vector<std::string> mismatched;  ///< another shape, or not equal to what it is tied to

  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

WeightsMatch match_weights(const ModelHandle& model, const SafetensorsFile& file);

/// Throws one Error with all that does not fit; `missing` and `unexpected` only when `strict`.
void check_weights(const WeightsMatch& match, const SafetensorsFile& file, bool strict);

/// How strict `load_weights` is.
struct LoadWeightsOptions {
  bool strict = true;  ///< off: take what fits by name; other shapes are refused all the same
};

/// Puts the tensors of a safetensors file into a model's parameters and buffers, converted to their
/// type and moved to their device. A file that does not fit is one Error which lists every missing,
/// unexpected and mis-shaped name, and leaves the model as it was. Returns how the names matched.
///
///   auto model = fleet::applications::Resnet50();
///   fleet::load_weights(model, "resnet50.safetensors");
///   fleet::save_weights(model, "trained.safetensors");
WeightsMatch load_weights(const ModelHandle& model, const std::filesystem::path& path,
                          const LoadWeightsOptions& options = {});

/// Parameters and buffers, each under its own name; of several names for one tensor, the first.
void save_weights(const ModelHandle& model, const std::filesystem::path& path);
/// What the tensors of such a file take.
int64_t weights_bytes(const ModelHandle& model);

}  // namespace fleet
