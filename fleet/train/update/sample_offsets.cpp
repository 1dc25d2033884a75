// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/sample_offsets.h"

#include <utility>

namespace fleet {

SampleOffsets::SampleOffsets(std::shared_ptr<comm::Communicator> comm) : comm_(std::move(comm)) {}

void SampleOffsets::open(int64_t samples, bool is_local) {
  if (comm_->size() == 1) {
    state_ = {.samples = samples, .first = 0};
    return;
  }
  is_resized_ = state_.samples >= 0 && samples != state_.samples;
  is_placed_ = !is_resized_ && state_.first >= 0;
  if (is_local || !must_agree_) return;
  const auto all =
      comm_->all_gather(torch::tensor({samples}, torch::kLong), "how many samples each rank has");
  state_ = {.samples = samples, .first = all.narrow(0, 0, comm_->rank()).sum().item<int64_t>()};
  must_agree_ = false;
  is_placed_ = true;
}

void SampleOffsets::close(bool is_resized) {
  must_agree_ |= is_resized;
  is_resized_ = false;
}

ops::RandomScope::Position SampleOffsets::position(const MicroBatch& next,
                                                   int64_t window_samples) const {
  const bool is_single_rank = comm_->size() == 1;
  const bool is_batch = next.batch_samples > 0;
  ops::RandomScope::Position position{.samples = next.samples()};
  position.first_sample = is_batch ? next.begin : window_samples;
  if (is_single_rank) return position;
  if (is_batch && is_placed_) {
    position.first_sample += state_.first;
  } else {
    position.stream = 1 + comm_->rank();
  }
  return position;
}

void SampleOffsets::set_state(const State& state) {
  state_ = state;
  must_agree_ = state.first < 0;
}

}  // namespace fleet
