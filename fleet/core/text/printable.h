// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fleet {

/// `text` from outside (a file, the store, another machine) for a message or a log: one line, at
/// most about `most_bytes` long, that cannot move the cursor, colour or clear the screen, or
/// reorder what is read. Printable ASCII and valid UTF-8 stay as they are; control characters,
/// bidirectional overrides, line separators and bytes that are not UTF-8 become escapes; a longer
/// text ends with how many bytes it had.
///
///   printable("caf\u00e9 \x1b[2J\n");   // "café \x1b[2J\n", the last two as backslash escapes
///   printable(key, 40);                  // "model.layers.0.attention.q... (4096 bytes)"
std::string printable(std::string_view text, size_t most_bytes = 300);

/// One line of a program's output without what could move the cursor or colour the screen: drops
/// the characters that `printable` escapes, tabs excepted; bytes that are not UTF-8 become escapes.
std::string without_control_characters(std::string_view line);

/// `printable` for a message of several lines, which stay lines; not bounded. Logs and
/// `print_error` print through it.
std::string printable_lines(std::string_view text);

}  // namespace fleet
