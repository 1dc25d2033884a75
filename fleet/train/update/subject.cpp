// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/subject.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "fleet/core/text/format.h"

namespace fleet {
namespace {

// "torch::nn::SequentialImpl" to "Sequential".
std::string short_name(std::string type) {
  const auto last = type.substr(0, type.find('<')).rfind("::");
  if (last != type.npos) type.erase(0, last + 2);
  if (type.ends_with("Impl")) type.resize(type.size() - 4);
  return type;
}

// Tests have several ranks in one process.
bool is_of_same_rank(const comm::Communicator& a, const comm::Communicator& b) {
  return a.size() == b.size() && a.rank() == b.rank();
}

}  // namespace

struct Subject::Living {
  std::mutex mutex;
  std::vector<const Subject*> all;  // in the order in which they were made

  static Living& get() {
    static auto* const one = new Living();
    return *one;
  }
};

Subject::Subject(std::shared_ptr<comm::Communicator> ranks, const optim::Optimizer& optimizer)
    : ranks_(std::move(ranks)),
      name_(format("{} of {}", optimizer.name(), short_name(optimizer.model().module().name()))) {
  auto& living = Living::get();
  const std::scoped_lock lock(living.mutex);
  living.all.push_back(this);
}

Subject::~Subject() {
  auto& living = Living::get();
  const std::scoped_lock lock(living.mutex);
  std::erase(living.all, this);
}

std::string Subject::text() const {
  auto& living = Living::get();
  const std::scoped_lock lock(living.mutex);
  int64_t others = 0, same = 0, place = 0;
  for (const auto* one : living.all) {
    if (!is_of_same_rank(*one->ranks_, *ranks_)) continue;
    others += one != this;
    same += one->name_ == name_;
    if (one == this) place = same;
  }
  if (others == 0) return "";
  return same == 1 ? name_ : format("{} ({} of {})", name_, place, same);
}

}  // namespace fleet
