#include "bench/report.h"

#include <algorithm>
#include <fstream>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/process_setup.h"

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

void write_json(const std::string& file, const std::vector<Row>& rows) {
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
  std::ofstream out(file);
  out << json.dump(2) << "\n";
  if (!out) throw Error("bench", format("cannot write '{}'", file));
}

}  // namespace fleet::bench
