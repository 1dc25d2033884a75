// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/buffer_average.h"

#include <map>
#include <string>
#include <string_view>

#include "fleet/core/error.h"

namespace fleet {
namespace {

constexpr std::string_view kMean = "running_mean";
constexpr std::string_view kVariance = "running_var";

torch::Tensor as_double(const torch::Tensor& buffer) {
  return buffer.detach().to(torch::kCPU).to(torch::kDouble).flatten().clone();
}

// Into a tensor of any shape, type and place.
void write_back(const torch::Tensor& buffer, const torch::Tensor& values) {
  buffer.detach().copy_(values.view(buffer.sizes()));
}

}  // namespace

BufferAverage::BufferAverage(const ModelHandle& model) {
  std::map<std::string, size_t> means;  // by the name of their layer
  for (const auto& [name, buffer] : model.buffers()) {
    if (torch::isFloatingType(buffer.scalar_type())) {
      if (name.ends_with(kMean)) {
        means[name.substr(0, name.size() - kMean.size())] = reals_.size();
      }
      Real real{.buffer = buffer, .common = as_double(buffer)};
      if (name.ends_with(kVariance)) {
        const auto mean = means.find(name.substr(0, name.size() - kVariance.size()));
        if (mean != means.end()) real.mean_at = mean->second;
      }
      sum_count_ += buffer.numel();
      reals_.push_back(std::move(real));
    } else if (buffer.numel() == 1 && torch::isIntegralType(buffer.scalar_type(), false)) {
      counters_.push_back({.buffer = buffer, .common = as_double(buffer)});
    }
  }
}

torch::Tensor BufferAverage::difference(const Real& real) {
  return as_double(real.buffer) - real.common;
}

void BufferAverage::write(double weight, const torch::Tensor& sums,
                          const torch::Tensor& counters) const {
  const torch::NoGradGuard no_grad;
  int64_t at = 0;
  for (const auto& real : reals_) {
    auto own = difference(real);
    if (real.mean_at) own.add_(difference(reals_[*real.mean_at]).square());
    sums.narrow(0, at, own.numel()).copy_(own.mul_(weight));
    at += own.numel();
  }
  for (size_t i = 0; i < counters_.size(); ++i) {
    counters[static_cast<int64_t>(i)].copy_(as_double(counters_[i].buffer)[0]);
  }
}

void BufferAverage::read(const torch::Tensor& means, const torch::Tensor& counters) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> moved;
  int64_t at = 0;
  for (const auto& real : reals_) {
    moved.push_back(means.narrow(0, at, real.common.numel()));
    at += real.common.numel();
  }
  for (size_t i = 0; i < reals_.size(); ++i) {
    reals_[i].common.add_(moved[i]);
    // mean((m_r - c)^2) - (m - c)^2 = mean((m_r - m)^2)
    if (reals_[i].mean_at) reals_[i].common.sub_(moved[*reals_[i].mean_at].square());
  }
  for (size_t i = 0; i < counters_.size(); ++i) {
    counters_[i].common.fill_(counters[static_cast<int64_t>(i)]);
  }
}

void BufferAverage::apply() const {
  const torch::NoGradGuard no_grad;
  for (const auto& real : reals_) write_back(real.buffer, real.common);
  for (const auto& counter : counters_) write_back(counter.buffer, counter.common);
}

std::vector<torch::Tensor> BufferAverage::common() const {
  std::vector<torch::Tensor> all;
  for (const auto& real : reals_) all.push_back(real.common);
  for (const auto& counter : counters_) all.push_back(counter.common);
  return all;
}

void BufferAverage::set_common(const std::vector<torch::Tensor>& common) {
  const auto own = this->common();
  FLEET_ASSERT(own.size() == common.size(), "buffers of another model");
  for (size_t i = 0; i < own.size(); ++i) own[i].copy_(common[i]);
}

}  // namespace fleet
