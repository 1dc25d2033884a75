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

/// Takes text in the place of a file descriptor; false: it does not, and the text is written. Empty
/// text only asks. Called by any thread, under any lock.
using TextSink = bool (*)(int fd, std::string_view text);

/// For a program whose user looks elsewhere: a notebook, say. Null: none, as at the start.
void set_text_sink(TextSink sink);

/// Whether text for `fd` goes to a sink, so that a terminal behind `fd` does not count.
bool is_text_redirected(int fd);

/// Why standard output could not be written by now, of `write_text` or of stdio; empty: it could.
std::string standard_output_problem();

/// Where standard input, output or error is closed (`program >&-`), opens something in its place
/// that cannot be read or written: the next file that the program opens would else take its
/// number, and get its text.
void open_missing_streams();

}  // namespace fleet
