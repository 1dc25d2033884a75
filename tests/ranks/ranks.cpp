// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/ranks.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace fleet::launch {

std::string after(const std::string& log, const std::string& word) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(word + " ")) return line.substr(word.size() + 1);
  }
  return "";
}

std::map<int, double> losses(const std::string& log) {
  std::map<int, double> found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string step, loss;
    int number = 0;
    double value = 0;
    if (words >> step >> number >> loss >> value && step == "step" && loss == "loss") {
      found[number] = value;
    }
  }
  return found;
}

std::string unexpected_lines(const std::string& log) {
  std::string found;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    auto lower = line;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (const char* sign :
         {"warn", "error", "closed", "exception", "fail", "[w", "[e", "frame #"}) {
      if (lower.find(sign) == lower.npos) continue;
      found += line + "\n";
      break;
    }
  }
  return found;
}

std::string error_in(const std::string& log) {
  std::string error;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const bool goes_on = !error.empty() && line.starts_with("  ");
    if (!error.empty() && !goes_on) break;
    if (goes_on || line.starts_with("error:")) error += line + "\n";
  }
  return error;
}

}  // namespace fleet::launch
