#pragma once

#include "fleet/comm/carrier.h"
#include "fleet/comm/elastic_group.h"

namespace fleet::comm {

/// Calls of a group that goes on without those that are gone: they contribute nothing to sums and
/// averages, and zeros where rows are gathered. A process that has still to join has nobody to
/// call, and finds what it passed.
class ElasticCarrier : public Carrier {
 public:
  explicit ElasticCarrier(std::shared_ptr<ElasticGroup> group) : group_(std::move(group)) {}

  std::unique_ptr<Pending::State> prepare(Call call) override;
  std::vector<int> present() const override { return group_->present(); }
  const std::string& group() const override;
  /// The same group: all of its calls have one order.
  std::shared_ptr<Carrier> duplicate(const std::string& /*name*/) override;

 private:
  struct GroupCall;
  std::shared_ptr<ElasticGroup> group_;
};

}  // namespace fleet::comm
