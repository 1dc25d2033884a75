#include "fleet/comm/meeting.h"

#include "fleet/core/format.h"

namespace fleet::comm {

std::string meet(Store table, int rank, int size, std::chrono::milliseconds limit) {
  using std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  const auto key = [](int of) { return format("arrived/{}", of); };
  table.set(key(rank), "1");
  const auto deadline = Clock::now() + limit;
  const auto is_there = [&](int other) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    // When the time is up, a question without a time limit: a rank that is there must not be
    // missed.
    return left > milliseconds(0) ? table.wait_for(key(other), left)
                                  : table.try_get(key(other)).has_value();
  };
  std::string missing;
  for (int other = 0; other < size; ++other) {
    if (!is_there(other)) missing += format(" {}", other);
  }
  return missing;
}

}  // namespace fleet::comm
