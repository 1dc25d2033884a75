// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/weights.h"

#include <cstring>
#include <map>
#include <set>
#include <utility>

#include <torch/nn/module.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"

namespace fleet {
namespace {

// What transformers calls a tied tensor of BERT, and Fleet does not.
constexpr std::pair<std::string_view, std::string_view> kTied[] = {
    {"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"},
    {"cls.predictions.decoder.bias", "cls.predictions.bias"}};

bool ends_with(std::string_view name, std::string_view end) { return name.ends_with(end); }

// The first released BERT files have the names of their TensorFlow variables.
std::string current_name(const std::string& name) {
  for (const auto& [old, now] : {std::pair(".LayerNorm.gamma", ".LayerNorm.weight"),
                                 std::pair(".LayerNorm.beta", ".LayerNorm.bias")}) {
    if (ends_with(name, old)) return name.substr(0, name.size() - std::strlen(old)) + now;
  }
  return name;
}

std::vector<NamedTensor> tensors_of(const ModelHandle& model) {
  auto tensors = model.parameters();
  for (auto& buffer : model.buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

bool same_bytes(const SafetensorsFile& file, const SafetensorsEntry& a, const SafetensorsEntry& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  const auto left = file.read(a), right = file.read(b);
  return a.bytes == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0;
}

// Whether `name`, which the model lacks, may be in a file all the same.
bool is_known_extra(const std::string& name, const SafetensorsFile& file,
                    const std::map<std::string, const SafetensorsEntry*>& in_file,
                    const std::set<std::string>& own, WeightsMatch& match) {
  if (ends_with(name, ".position_ids")) return true;
  for (const auto& [tied, to] : kTied) {
    if (name != tied || own.count(std::string(to)) == 0) continue;
    const auto partner = in_file.find(std::string(to));
    if (partner == in_file.end() || same_bytes(file, *in_file.at(name), *partner->second)) {
      return true;
    }
    match.mismatched.push_back(
        format("{} differs from {}, which is the same tensor in this model", name, to));
    return true;
  }
  return false;
}

// Of several names for one tensor, the first.
std::vector<NamedTensor> saved_tensors(const ModelHandle& model) {
  std::vector<NamedTensor> first;
  std::set<const void*> seen;
  for (auto& named : tensors_of(model)) {
    if (seen.insert(named.tensor.unsafeGetTensorImpl()).second) first.push_back(std::move(named));
  }
  return first;
}

}  // namespace

WeightsMatch match_weights(const ModelHandle& model, const SafetensorsFile& file) {
  WeightsMatch match;
  std::map<std::string, const SafetensorsEntry*> in_file;
  for (const auto& entry : file.entries()) {
    const auto name = current_name(entry.name);
    if (!in_file.emplace(name, &entry).second)
      match.mismatched.push_back(format("{} is there under its old name too", name));
  }
  const auto tensors = tensors_of(model);
  std::set<std::string> own;
  std::map<const void*, std::string> provided;  // tensors that a name of theirs was found for
  for (const auto& [name, tensor] : tensors) {
    own.insert(name);
    const auto found = in_file.find(name);
    if (found == in_file.end()) continue;
    const auto& entry = *found->second;
    const auto [before, is_new] = provided.try_emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_new && !same_bytes(file, entry, *in_file.at(before->second))) {
      match.mismatched.push_back(format(
          "{} differs from {}, which is the same tensor in this model", name, before->second));
    }
    if (tensor.sizes() == at::IntArrayRef(entry.shape)) {
      match.pairs.push_back({{name, tensor}, &entry});
    } else {
      match.mismatched.push_back(format("{} is {} in the file and {} in the model", name,
                                        shape_text(entry.shape), shape_text(tensor.sizes())));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (provided.count(tensor.unsafeGetTensorImpl()) == 0 &&
        !ends_with(name, ".num_batches_tracked")) {
      match.missing.push_back(name);
    }
  }
  for (const auto& [name, entry] : in_file) {
    if (own.count(name) == 0 && !is_known_extra(name, file, in_file, own, match))
      match.unexpected.push_back(entry->name);
  }
  return match;
}

void check_weights(const WeightsMatch& match, const SafetensorsFile& file, bool strict) {
  std::vector<std::string> problems;
  if (strict) {
    for (const auto& name : match.missing) problems.push_back("missing: " + name);
    for (const auto& name : match.unexpected) {
      problems.push_back("unexpected: " + name + did_you_mean(name, match.missing));
    }
  }
  for (const auto& text : match.mismatched) problems.push_back("mismatched: " + text);
  if (problems.empty()) return;
  throw UsageError::all(
      "weights",
      format("{} does not fit the model: {} missing, {} unexpected, {} mismatched",
             file.path().string(), match.missing.size(), match.unexpected.size(),
             match.mismatched.size()),
      problems,
      match.mismatched.empty()
          ? "take the file of this model, or load with strict off what there is of it"
          : "take the file of this model, or build the model with the file's sizes");
}

WeightsMatch load_weights(const ModelHandle& model, const std::filesystem::path& path,
                          const LoadWeightsOptions& options) {
  const SafetensorsFile file(path);
  auto match = match_weights(model, file);
  check_weights(match, file, options.strict);
  for (auto& [own, entry] : match.pairs) {
    file.read_into(*entry, own.tensor);
    entry = nullptr;  // the file ends here
  }
  return match;
}

void save_weights(const ModelHandle& model, const std::filesystem::path& path) {
  write_safetensors(path, saved_tensors(model));
}

int64_t weights_bytes(const ModelHandle& model) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : saved_tensors(model)) {
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace fleet
