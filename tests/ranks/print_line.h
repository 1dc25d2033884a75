// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include <torch/types.h>

namespace fleet::launch {

/// Prints a line of a rank for the tests, in one write.
inline void print_line(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

/// A number for all bits of a model's parameters.
inline uint64_t digest(const std::vector<torch::Tensor>& parameters) {
  uint64_t value = 14695981039346656037ull;
  for (const auto& parameter : parameters) {
    const auto flat = parameter.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
    for (size_t i = 0; i < flat.nbytes(); ++i) value = (value ^ bytes[i]) * 1099511628211ull;
  }
  return value;
}

}  // namespace fleet::launch
