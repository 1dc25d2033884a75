// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include <torch/types.h>

namespace fleet {

/// Reads an IDX file of unsigned bytes (MNIST's format) as a uint8 tensor; a name that ends in
/// ".gz" is inflated on the way.
///
/// Strict: the header must be well formed and the file hold exactly what it promises, with the
/// checksum right. Memory grows with what is really read, so that a header which promises a
/// terabyte costs nothing. Every refusal is a `fleet::Error` that names the file.
///
///   torch::Tensor images = fleet::read_idx_file("train-images-idx3-ubyte.gz");  // 60000x28x28
torch::Tensor read_idx_file(const std::filesystem::path& path);

}  // namespace fleet
