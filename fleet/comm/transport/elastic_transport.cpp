// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/transport/elastic_transport.h"

#include <future>

namespace fleet::comm {

struct ElasticTransport::GroupCall : Work::State {
  GroupCall(Collective call, std::shared_ptr<ElasticGroup> group)
      : call(std::move(call)), group(std::move(group)) {}

  void launch() override {
    call.what = what;
    done = group->submit(std::move(call));
  }
  void block() override {
    while (done.wait_for(until_notice()) != std::future_status::ready) log_wait_if_due();
    done.get();
  }
  std::string waits_for() const override { return group->waits_for(); }
  bool is_done() const override {
    return done.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  Collective call;
  std::shared_ptr<ElasticGroup> group;
  std::shared_future<void> done;
};

std::unique_ptr<Work::State> ElasticTransport::prepare(Collective call) {
  const bool is_alone = group_->is_joining();
  if (call.kind == Collective::Kind::kAllGather) {  // an all-reduce of tables in which each rank
                                                    // fills in its row
    const torch::NoGradGuard no_grad;
    const auto& rows = call.tensors[1];
    if (is_alone) {
      rows.copy_(call.tensors[0].unsqueeze(0).expand_as(rows));
    } else {
      rows.zero_();
      rows[group_->rank()].copy_(call.tensors[0]);
    }
    call.kind = Collective::Kind::kAllReduce;
    call.tensors = {rows};
  }
  if (is_alone) return nullptr;
  return std::make_unique<GroupCall>(std::move(call), group_);
}

const std::string& ElasticTransport::group() const {
  static const std::string name = "elastic";
  return name;
}

std::shared_ptr<Transport> ElasticTransport::duplicate(const std::string& /*name*/) {
  return std::make_shared<ElasticTransport>(group_);
}

}  // namespace fleet::comm
