// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/comm/elastic/elastic_group.h"
#include "fleet/comm/transport/transport.h"

namespace fleet::comm {

/// Collectives of a group that continues without lost ranks: they contribute nothing to sums and
/// averages, and zeros to all_gather. In a process that has still to join, every call returns its
/// input.
class ElasticTransport : public Transport {
 public:
  explicit ElasticTransport(std::shared_ptr<ElasticGroup> group) : group_(std::move(group)) {}

  std::unique_ptr<Work::State> prepare(Collective call) override;
  std::vector<int> present() const override { return group_->present(); }
  const std::string& group() const override;
  /// The same group: all of its calls share one order.
  std::shared_ptr<Transport> duplicate(const std::string& /*name*/) override;

 private:
  struct GroupCall;
  std::shared_ptr<ElasticGroup> group_;
};

}  // namespace fleet::comm
