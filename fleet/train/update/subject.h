// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "fleet/comm/communicator.h"
#include "fleet/optim/optimizer.h"

namespace fleet {

/// How the lines of a training say whose they are where a program trains several models: "Adam of
/// Generator". Counts those of one rank that live, from any thread.
class Subject {
 public:
  Subject(std::shared_ptr<comm::Communicator> ranks, const optim::Optimizer& optimizer);
  ~Subject();
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;

  /// For a log::SubjectScope; empty while there is no other.
  std::string text() const;

 private:
  struct Living;
  std::shared_ptr<comm::Communicator> ranks_;
  std::string name_;
};

}  // namespace fleet
