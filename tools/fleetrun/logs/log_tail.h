// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fleet::launch {

/// What fleetrun shows of a rank's output.
struct TailOptions {
  size_t most_lines = 20;
  bool with_frames = false;  // LibTorch's stack frames; FLEET_BACKTRACE=1
};

/// The last lines of `text`: the final state of progress lines, without control characters and
/// stack frames. The last error is always among them, whatever was printed after it.
///
///   tail_of("error: no such file\nframe #0: ...\n", {});   // the error, and that frames are
///   hidden
std::vector<std::string> tail_of(std::string_view text, const TailOptions& options);

/// The last line of `text` that begins with "error: "; empty without one.
std::string last_error(std::string_view text);

}  // namespace fleet::launch
