// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace fleet {

/// Writes all of `text` in as few calls as the kernel lets it, after what stdio holds, so that
/// lines of several ranks on one terminal do not mix. A failure is no error here: training does not
/// end for a full disk under its log. For standard output it is remembered, and `run_main` ends
/// with it.
void write_text(int fd, std::string_view text);

/// Why standard output could not be written by now, of `write_text` or of stdio; empty: it could.
std::string standard_output_problem();

/// Where standard input, output or error is closed (`program >&-`), opens something in its place
/// that cannot be read or written: the next file that the program opens would else take its
/// number, and get its text.
void open_missing_streams();

}  // namespace fleet
