// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fleet/core/error.h"

#include "tests/ranks/recovery.h"

namespace fleet::launch {

/// Exit code of a job; -1 when nothing of it has printed a line for three minutes. No limit for the
/// whole job: a busy machine may need any time for it.
inline int wait_while_it_prints(Launched& job, int ranks) {
  using namespace std::chrono_literals;
  size_t before = 0;
  for (;;) {
    if (const int code = job.wait(180s); code != -1) return code;
    size_t bytes = job.output().size();
    for (int rank = 0; rank < ranks; ++rank) bytes += job.log(rank).size();
    if (bytes == before) return -1;
    before = bytes;
  }
}

/// What the recovery program ends with when nothing disturbs it; an Error when it does not end.
inline std::string expected_digest(int ranks, const Words& arguments) {
  Launched job(recovery_job(ranks, "", arguments), with({"OMP_NUM_THREADS=1"}));
  const int code = wait_while_it_prints(job, ranks);
  auto digest = after(job.log(0), "digest");
  if (code == 0 && !digest.empty()) return digest;
  throw Error("soak", "the undisturbed run has not ended well", job.output());
}

}  // namespace fleet::launch
