// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fleet::log {

/// What this thread's lines are about while it lives, one of several optimizers for example:
/// `[area] subject: message`. Empty: lines say nothing of it.
class SubjectScope {
 public:
  explicit SubjectScope(std::string subject);
  ~SubjectScope();
  SubjectScope(const SubjectScope&) = delete;
  SubjectScope& operator=(const SubjectScope&) = delete;

 private:
  std::string before_;
};

}  // namespace fleet::log
