// SPDX-License-Identifier: Apache-2.0
// MNIST's files. A plain one has one way to be written, so what is accepted must be what comes out
// of its tensor again.

#include "fleet/data/formats/idx_file.h"

#include "fuzz/scratch_file.h"
#include "tests/data/idx_bytes.h"

namespace fleet::fuzz {
namespace {

void run(Bytes bytes) {
  static const ScratchFile file("input-idx-ubyte");
  torch::Tensor tensor;
  if (!accepts([&] { tensor = read_idx_file(file.write(bytes)); })) return;
  require(tensor.dim() > 0 && tensor.is_contiguous() && tensor.scalar_type() == torch::kByte,
          "it is a tensor of bytes");
  std::vector<uint32_t> shape;
  for (const auto size : tensor.sizes()) {
    require(size >= 0, "a size is not negative");
    shape.push_back(static_cast<uint32_t>(size));
  }
  for (const auto stride : tensor.strides()) require(stride >= 0, "a stride is not negative");
  auto text = idx_header(shape);
  text.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  require(text == text_of(bytes), "written again it is the same file");
}

const Target target("idx_file", run);

}  // namespace
}  // namespace fleet::fuzz
