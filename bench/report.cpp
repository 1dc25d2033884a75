// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/process/process_setup.h"
#include "fleet/core/text/format.h"
#include "fleet/io/atomic_file.h"
#include "fleet/io/output_check.h"

namespace fleet::bench {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(": ") + 2);
  }
  return "unknown";
}

std::string vector_instructions() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) != 0) continue;
    line += ' ';
    if (line.find(" avx512_bf16 ") != std::string::npos) return "AVX-512, bf16";
    if (line.find(" avx512f ") != std::string::npos) return "AVX-512";
    return line.find(" avx2 ") != std::string::npos ? "AVX2" : "SSE";
  }
  return "unknown";
}

}  // namespace

double Timing::best() const { return *std::min_element(seconds.begin(), seconds.end()); }

double Timing::median() const {
  auto sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

std::string Timing::spread() const {
  return format("best {:.2f} ms, median {:.2f}, worst {:.2f}", best() * 1e3, median() * 1e3,
                *std::max_element(seconds.begin(), seconds.end()) * 1e3);
}

Slowdown::Slowdown(std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  const auto at = [&](double part) {
    return ratios[static_cast<size_t>(std::lround(part * static_cast<double>(ratios.size() - 1)))];
  };
  middle = at(0.5);
  low = at(0.25);
  high = at(0.75);
}

Slowdown::Slowdown(const Timing& work, const Timing& peer)
    : Slowdown([&] {
        std::vector<double> ratios;
        for (size_t i = 0; i < work.seconds.size(); ++i)
          ratios.push_back(work.seconds[i] / peer.seconds[i]);
        return ratios;
      }()) {}

std::string Slowdown::text() const {
  return format("{:+.1f} % time (half of the runs {:+.1f} to {:+.1f})", 100 * (middle - 1),
                100 * (low - 1), 100 * (high - 1));
}

std::vector<Timing> alternate(int rounds, const std::vector<std::function<void()>>& works,
                              const std::function<void()>& before_each) {
  std::vector<Timing> timings(works.size());
  for (int round = -1; round < rounds; ++round) {  // the first round warms up
    for (size_t i = 0; i < works.size(); ++i) {
      if (before_each) before_each();
      const auto begin = std::chrono::steady_clock::now();
      works[i]();
      const auto end = std::chrono::steady_clock::now();
      if (round >= 0)
        timings[i].seconds.push_back(std::chrono::duration<double>(end - begin).count());
    }
  }
  return timings;
}

void print_table(const std::string& title, const std::vector<Row>& rows) {
  std::string text = format("\n{}   ({}, {}, {} cores)\n", title, cpu_name(), vector_instructions(),
                            available_cores());
  text +=
      format("{:<52} {:>10} {:<6} {:<34} {:>10} {:>7}\n", "", "value", "unit", "peer", "", "ratio");
  for (const auto& row : rows) {
    text += format("{:<52} {:>10.3f} {:<6} {:<34} {:>10.3f} {:>7.2f}  {}\n", row.name, row.value,
                   row.unit, row.peer, row.peer_value, row.ratio, row.note);
  }
  std::fputs(text.c_str(), stdout);
}

JsonOutput::JsonOutput(const std::string& file) : file_(file), out_(nullptr, std::fclose) {
  if (!file.empty()) {
    check_output_file({file, "--json", "bench"});
    return;
  }
  std::fflush(stdout);
  out_.reset(fdopen(dup(STDOUT_FILENO), "w"));
  if (!out_) throw Error("bench", format("cannot write: {}", std::strerror(errno)));
  dup2(STDERR_FILENO, STDOUT_FILENO);
}

void JsonOutput::write(const std::vector<Row>& rows) {
  nlohmann::ordered_json json;
  json["machine"] = {
      {"cpu", cpu_name()}, {"instructions", vector_instructions()}, {"cores", available_cores()}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const auto& row : rows) {
    json["rows"].push_back({{"name", row.name},
                            {"value", row.value},
                            {"unit", row.unit},
                            {"peer", row.peer},
                            {"peer_value", row.peer_value},
                            {"ratio", row.ratio}});
  }
  const auto text = json.dump(2) + "\n";
  if (!out_) {
    write_file_atomically(file_, text, "bench");
    return;
  }
  std::fputs(text.c_str(), out_.get());
  if (std::fflush(out_.get()) != 0) throw Error("bench", "cannot write the rows");
}

}  // namespace fleet::bench
