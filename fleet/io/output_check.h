// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fleet {

/// A place that a program will write to, with the flag that names it: "--save".
struct OutputPlace {
  std::filesystem::path path;
  std::string_view flag;
  std::string_view area;  // of errors
};

// Outputs are checked before training: each of these throws UsageError, with
// the flag and the reason, where the command line has to change (a read-only disk, a file where a
// folder should be, no room), and Error where the disk itself fails, or has filled up since the
// launcher's first attempt: fleetrun restarts after that one.

/// Makes the folder, and writes, syncs and removes a small file in it.
///
///   check_output_folder({options.snapshot_dir, "--snapshot_dir", "snapshot"});
void check_output_folder(const OutputPlace& folder);

/// The same for the folder of a file, which must not be a folder itself; `bytes`: how large the
/// file will be, as far as that is known.
void check_output_file(const OutputPlace& file, int64_t bytes = 0);

/// Compares `bytes`, and what earlier calls were about for other flags on the same file system,
/// with what that has left. Quotas are not known to it.
void check_room(const OutputPlace& folder, int64_t bytes, std::string_view what);
/// Compares the size of one file with the limit that this process has (`ulimit -f`).
void check_file_size_limit(const OutputPlace& place, int64_t bytes, std::string_view what);
/// What `flag` names has been written, and is no longer counted.
void output_written(std::string_view flag);

/// An input, and what it is to the user: {"book.txt", "a text"}.
struct InputFile {
  std::filesystem::path path;
  std::string_view what;
};

/// Throws UsageError when an output is the same file as an input (by device and inode: through
/// links and other spellings too), or as another output. Empty paths are left out.
void check_overwrites_nothing(const std::vector<OutputPlace>& outputs,
                              const std::vector<InputFile>& inputs);

}  // namespace fleet
