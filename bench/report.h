#pragma once

#include <functional>
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

/// A table for people, and with --json a file for programs.
void print_table(const std::string& title, const std::vector<Row>& rows);
void write_json(const std::string& file, const std::vector<Row>& rows);

/// Seconds of each run of several pieces of work, taken in turn, so that a noisy machine harms all
/// alike.
struct Timing {
  std::vector<double> seconds;
  double best() const;
  double median() const;
  /// "best 12.1 ms, median 12.5, worst 14.0"
  std::string spread() const;
};
std::vector<Timing> alternate(int rounds, const std::vector<std::function<void()>>& works,
                              const std::function<void()>& before_each = {});

}  // namespace fleet::bench
