#include "fleet/core/process_setup.h"

#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include <ATen/Parallel.h>

#include "fleet/core/format.h"
#include "fleet/core/log.h"

namespace fleet {
namespace {

// A load that no one notices: daemons, and the average of what ended within the last minute.
constexpr double kSpareLoad = 0.5;

// glibc maps blocks above 32 MB and unmaps them on free, so that every large activation is faulted
// in anew in each step. With these limits freed blocks stay in the heap and are used again.
bool keep_pages() {
  const char* told = std::getenv("FLEET_KEEP_PAGES");
  if (told != nullptr && std::string(told) == "0") return false;
  constexpr int kBytes = 1 << 30;
  return mallopt(M_MMAP_THRESHOLD, kBytes) == 1 && mallopt(M_TRIM_THRESHOLD, kBytes) == 1;
}

}  // namespace

bool is_wait_policy_chosen() {
  return std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr;
}

std::string wait_policy_advice(int threads, int cores, double load) {
  if (threads < 2 || threads + load <= cores + kSpareLoad || is_wait_policy_chosen()) return "";
  return format(
      "others use about {:.1f} of the {} cores, and OpenMP's threads spin while they wait for each "
      "other: training may take several times as long. Start the program with fleetrun, or with "
      "GOMP_SPINCOUNT={}",
      std::min<double>(load, cores), cores, kSpinCount);
}

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
  double load = 0;
  if (::getloadavg(&load, 1) != 1) load = 0;
  const auto advice = wait_policy_advice(at::get_num_threads(), cores, load);
  if (!advice.empty()) log::info("threads", advice);
  return threads + (keep_pages() ? ", malloc keeps freed pages" : ", malloc as it is");
}

}  // namespace fleet
