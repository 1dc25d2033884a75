// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace fleet::comm {

/// The secret of a job, needed to read and write the job's store. Ranks read it from the
/// environment (`FLEET_JOB_KEY`), which other users of a machine cannot read, never on a command
/// line, which they can. Empty: a job without one.
constexpr auto kJobKeyVariable = "FLEET_JOB_KEY";
constexpr size_t kMinKeyBytes = 16;
constexpr size_t kMaxKeyBytes = 4096;

/// 256 random bits, in 64 hexadecimal digits.
std::string make_job_key();

/// An Error that names `where` when a key is too short to be a secret, or too long.
void check_job_key(const std::string& key, const std::string& where);

/// The value of `FLEET_JOB_KEY`, or "".
std::string job_key_from_environment();

/// The first line of a file that only its owner can read.
std::string job_key_from_file(const std::string& path);

/// `count` random bytes from the kernel.
std::string random_bytes(size_t count);

}  // namespace fleet::comm
