// SPDX-License-Identifier: Apache-2.0
// The JSON at the start of a safetensors file. The first eight bytes say how much data follows it.

#include "fleet/io/safetensors_header.h"

#include <cstring>

#include "fuzz/target.h"

namespace fleet::fuzz {
namespace {

void run(Bytes bytes) {
  int64_t data_bytes = 0;
  if (bytes.size() < sizeof(data_bytes)) return;
  std::memcpy(&data_bytes, bytes.data(), sizeof(data_bytes));
  data_bytes &= std::numeric_limits<int64_t>::max() >> 1;  // a file's size, with room for a header
  const auto text = text_of(bytes.subspan(sizeof(data_bytes)));
  const auto data_begin = static_cast<int64_t>(sizeof(data_bytes) + text.size());
  fleet::detail::SafetensorsHeader header;
  if (!accepts([&] {
        header = fleet::detail::parse_safetensors_header(text, "input", data_begin, data_bytes);
      }))
    return;
  int64_t end = data_begin;
  for (const auto& entry : header.entries) {
    require(entry.begin == end && entry.bytes >= 0, "tensors follow one another");
    require(fleet::detail::tensor_bytes(entry.dtype, entry.shape) == entry.bytes,
            "bytes are those of type and shape");
    require(!safetensors_type_name(entry.dtype).empty(), "the type is the format's");
    require(text.size() > entry.name.size(), "a name is in the text");
    end += entry.bytes;
  }
  require(end == data_begin + data_bytes, "tensors cover the data");
}

const Target target("safetensors_header", run);

}  // namespace
}  // namespace fleet::fuzz
