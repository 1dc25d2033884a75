// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace fleet::bench {

/// A Python program that does a peer's work when it is told to, so that both can be measured in
/// turn. The interpreter is FLEET_PYTHON, or else python3.
///
/// The program writes "ready" when it has loaded what it needs, and answers every line on its
/// standard input by a line. One that ends before is not there: a package is missing, say.
///
///   PythonPeer peer("bench/images_peer.py", {folder});
///   if (peer.is_available()) peer.ask("train");
class PythonPeer {
 public:
  PythonPeer(const std::string& script, const std::vector<std::string>& arguments);
  ~PythonPeer();
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;

  bool is_available() const { return is_available_; }
  /// Waits for the answer.
  std::string ask(const std::string& what);

 private:
  bool read_line(std::string& line);

  int pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  bool is_available_ = false;
};

}  // namespace fleet::bench
