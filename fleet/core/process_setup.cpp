#include "fleet/core/process_setup.h"

#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include <ATen/Parallel.h>

#include "fleet/core/format.h"

namespace fleet {
namespace {

// glibc maps blocks above 32 MB and unmaps them on free, so that every large activation is faulted
// in anew in each step. With these limits freed blocks stay in the heap and are used again.
bool keep_pages() {
  const char* told = std::getenv("FLEET_KEEP_PAGES");
  if (told != nullptr && std::string(told) == "0") return false;
  constexpr int kBytes = 1 << 30;
  return mallopt(M_MMAP_THRESHOLD, kBytes) == 1 && mallopt(M_TRIM_THRESHOLD, kBytes) == 1;
}

}  // namespace

int available_cores() {
  std::array<cpu_set_t, 16> cores{};  // room for 16,384
  if (sched_getaffinity(0, sizeof(cores), cores.data()) == 0) {
    return std::max(1, CPU_COUNT_S(sizeof(cores), cores.data()));
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

std::string set_up_process(int local_ranks) {
  const int cores = available_cores();
  std::string threads;
  if (const char* told = std::getenv("OMP_NUM_THREADS")) {
    const int number = std::max(1, std::atoi(told));
    at::set_num_threads(number);
    threads = format("{} thread{} per rank (OMP_NUM_THREADS)", number, number == 1 ? "" : "s");
  } else {
    const int number = std::max(1, cores / std::max(1, local_ranks));
    at::set_num_threads(number);
    threads = format("{} thread{} per rank ({} cores / {} here)", number, number == 1 ? "" : "s",
                     cores, local_ranks);
  }
  return threads + (keep_pages() ? ", malloc keeps freed pages" : ", malloc as it is");
}

}  // namespace fleet
