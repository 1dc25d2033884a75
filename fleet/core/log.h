// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace fleet::log {

/// Lines are `[area] message`. `info` and `warn` speak on rank 0 only, `*_here` on every rank, with
/// its number when there are several: for what concerns one rank.
void info(std::string_view area, std::string_view message);
void warn(std::string_view area, std::string_view message);
void info_here(std::string_view area, std::string_view message);
void warn_here(std::string_view area, std::string_view message);

/// A line without an area (tables, step lines), on rank 0.
void plain(std::string_view text);

/// Who is speaking; `fleet::init` sets it.
void set_rank(int rank, int world_size);
/// Another rank speaks for all where rank 0 is gone.
void set_enabled(bool enabled);

}  // namespace fleet::log
