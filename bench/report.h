// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fleet::bench {

/// One figure beside its peer. `ratio` above 1 means better than the peer.
struct Row {
  std::string name;
  double value = 0;
  std::string unit;
  std::string peer;
  double peer_value = 0;
  double ratio = 0;
  std::string note;  // best and spread, for people
};

/// A table for people.
void print_table(const std::string& title, const std::vector<Row>& rows);

/// The rows for programs: a file, which is seen to be writable at once, since a benchmark takes
/// long; or, without a name, the standard output, and all else that is printed goes to the standard
/// error.
class JsonOutput {
 public:
  explicit JsonOutput(const std::string& file);
  void write(const std::vector<Row>& rows);

 private:
  std::string file_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> out_;  // without a file
};

/// Seconds of each run of several pieces of work, taken in turn, so that a noisy machine harms all
/// alike.
struct Timing {
  std::vector<double> seconds;
  double best() const;
  double median() const;
  /// "best 12.1 ms, median 12.5, worst 14.0"
  std::string spread() const;
};

/// How many times longer `work` takes than `peer`: the middle of the ratios of runs that stood side
/// by side, and where half of them lie. What a noisy machine does to both does not count.
struct Slowdown {
  double middle = 1;
  double low = 1, high = 1;  // quartiles

  explicit Slowdown(std::vector<double> ratios);
  Slowdown(const Timing& work, const Timing& peer);
  /// "+9.8 % time (half of the runs +8.9 to +10.4)"
  std::string text() const;
};

std::vector<Timing> alternate(int rounds, const std::vector<std::function<void()>>& works,
                              const std::function<void()>& before_each = {});

}  // namespace fleet::bench
