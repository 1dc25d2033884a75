#include "fleet/comm/elastic_carrier.h"

#include <future>

namespace fleet::comm {
namespace {

ElasticCall::Kind kind_of(Call::Kind kind) {
  switch (kind) {
    case Call::Kind::kBroadcast:
      return ElasticCall::Kind::kBroadcast;
    case Call::Kind::kMeet:
      return ElasticCall::Kind::kMeet;
    default:
      return ElasticCall::Kind::kReduce;
  }
}

}  // namespace

struct ElasticCarrier::GroupCall : Pending::State {
  GroupCall(ElasticCall call, std::shared_ptr<ElasticGroup> group)
      : call(std::move(call)), group(std::move(group)) {}

  void launch() override {
    call.what = what;
    done = group->submit(std::move(call));
  }
  void block() override { done.get(); }
  bool is_done() const override {
    return done.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  ElasticCall call;
  std::shared_ptr<ElasticGroup> group;
  std::shared_future<void> done;
};

std::unique_ptr<Pending::State> ElasticCarrier::prepare(Call call) {
  const bool is_alone = group_->is_joining();
  if (call.kind == Call::Kind::kGather) {  // the sum of tables in which each fills in its row
    const torch::NoGradGuard no_grad;
    const auto& rows = call.tensors[1];
    if (is_alone) {
      rows.copy_(call.tensors[0].unsqueeze(0).expand_as(rows));
    } else {
      rows.zero_();
      rows[group_->rank()].copy_(call.tensors[0]);
    }
    call.tensors = {rows};
  }
  if (is_alone) return nullptr;
  ElasticCall elastic{.kind = kind_of(call.kind),
                      .tensors = std::move(call.tensors),
                      .op = call.op,
                      .root = call.root};
  return std::make_unique<GroupCall>(std::move(elastic), group_);
}

const std::string& ElasticCarrier::group() const {
  static const std::string name = "elastic";
  return name;
}

std::shared_ptr<Carrier> ElasticCarrier::duplicate(const std::string& /*name*/) {
  return std::make_shared<ElasticCarrier>(group_);
}

}  // namespace fleet::comm
