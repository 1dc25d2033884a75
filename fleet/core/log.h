// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace fleet::log {

/// Lines are `[area] message`. `info` and `warn` print on rank 0 only, `*_here` on every rank, with
/// its number when there are several: for what concerns one rank.
void info(std::string_view area, std::string_view message);
void warn(std::string_view area, std::string_view message);
void info_here(std::string_view area, std::string_view message);
void warn_here(std::string_view area, std::string_view message);

/// A line without an area (tables, step lines), on rank 0.
void plain(std::string_view text);

/// The rank that lines name; `fleet::init` sets it.
void set_rank(int rank, int world_size);
/// Lets another rank print in place of a lost rank 0.
void set_enabled(bool enabled);

}  // namespace fleet::log
