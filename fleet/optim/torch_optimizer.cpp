// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/torch_optimizer.h"

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/option_checks.h"
#include "fleet/optim/torch_optimizer_name.h"

namespace fleet::optim {
namespace {

std::string type_name(const ::torch::optim::Optimizer& optimizer) {
  if (const auto* named = dynamic_cast<const TorchOptimizerName*>(&optimizer)) {
    return named->type_name();
  }
  return c10::demangle(typeid(optimizer).name());
}

// The rate of the first group, once it is known that this optimizer can be used.
double checked_rate(const std::shared_ptr<::torch::optim::Optimizer>& optimizer) {
  if (!optimizer) {
    throw Error("optim", "the torch optimizer is a null pointer", "make one and pass it");
  }
  const auto name = type_name(*optimizer);
  if (dynamic_cast<const ::torch::optim::LBFGS*>(optimizer.get()) != nullptr) {
    throw Error("optim",
                format("{} evaluates its closure many times per step, and an update here has one "
                       "forward and backward, shared by all ranks",
                       name),
                "use an optimizer that steps from one gradient, such as torch::optim::RMSprop or "
                "fleet::optim::Adam");
  }
  if (optimizer->param_groups().empty()) {
    throw Error("optim", format("{} has no parameter group", name),
                "make it with the model's parameters");
  }
  try {
    for (auto& group : optimizer->param_groups()) {
      group.options().set_lr(group.options().get_lr());
    }
    return optimizer->param_groups().front().options().get_lr();
  } catch (const c10::Error& error) {
    throw Error("optim",
                format("the options of {} do not tell a learning rate: {}", name,
                       error.what_without_backtrace()),
                "override get_lr() and set_lr() in its options class");
  }
}

// Bytes of a tensor that grows as an archive is written.
class ByteTensor {
 public:
  size_t append(const void* data, size_t size) {
    const auto needed = used_ + static_cast<int64_t>(size);
    if (needed > bytes_.numel()) bytes_.resize_({std::max(needed, 2 * bytes_.numel())});
    std::memcpy(bytes_.mutable_data_ptr<uint8_t>() + used_, data, size);
    used_ = needed;
    return size;
  }
  torch::Tensor take() { return bytes_.narrow(0, 0, used_); }

 private:
  torch::Tensor bytes_ = torch::empty({0}, torch::kByte);
  int64_t used_ = 0;
};

void open(torch::serialize::InputArchive& archive, const torch::Tensor& bytes) {
  archive.load_from(static_cast<const char*>(bytes.const_data_ptr()),
                    static_cast<size_t>(bytes.numel()));
}

}  // namespace

TorchOptimizer::TorchOptimizer(ModelHandle model,
                               std::shared_ptr<::torch::optim::Optimizer> optimizer,
                               const TorchOptimizerOptions& options)
    : Optimizer(std::move(model),
                {.lr = checked_rate(optimizer), .max_grad_norm = options.max_grad_norm}),
      optimizer_(std::move(optimizer)),
      name_(type_name(*optimizer_)) {
  std::vector<std::string> problems;
  require_not_negative(problems, "max_grad_norm", options.max_grad_norm);
  throw_if_any(name_, problems);
}

TorchOptimizer::TorchOptimizer(ModelHandle model, ::torch::optim::Optimizer& optimizer,
                               const TorchOptimizerOptions& options)
    : TorchOptimizer(
          std::move(model),
          std::shared_ptr<::torch::optim::Optimizer>(std::shared_ptr<void>(), &optimizer),
          options) {}

std::vector<double> TorchOptimizer::rates() const {
  std::vector<double> rates;
  for (const auto& group : optimizer_->param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

double TorchOptimizer::lr() const { return optimizer_->param_groups().front().options().get_lr(); }

// Ratios are kept, since a rate of 0 (a warm-up's first) would lose them. Where somebody else has
// set rates since, theirs count.
void TorchOptimizer::set_lr(double lr) {
  check_lr(lr);
  const auto now = rates();
  if (now != set_rates_ && now.front() > 0) {
    rate_ratios_.clear();
    for (const double rate : now) rate_ratios_.push_back(rate / now.front());
  }
  if (lr == now.front()) return;
  if (rate_ratios_.size() != now.size()) {
    for (const double rate : now) {
      if (rate == 0) continue;
      throw Error("optim",
                  format("the first parameter group of {} has the rate 0 and another one {}, so "
                         "that they cannot be moved in proportion",
                         name_, rate),
                  "put a group with a rate first, or set the rates of the groups by hand");
    }
    rate_ratios_.assign(now.size(), 1);
  }
  for (size_t i = 0; i < now.size(); ++i) {
    optimizer_->param_groups()[i].options().set_lr(lr * rate_ratios_[i]);
  }
  set_rates_ = rates();
}

void TorchOptimizer::on_bind() {
  std::unordered_map<const void*, size_t> spans;
  for (size_t i = 0; i < arena().spans().size(); ++i) {
    spans.emplace(arena().spans()[i].parameter.unsafeGetTensorImpl(), i);
  }
  std::unordered_set<const void*> frozen;
  for (const auto& item : arena().frozen()) frozen.insert(item.tensor.unsafeGetTensorImpl());

  tensors_.assign(arena().spans().size(), {});
  auto& groups = optimizer_->param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t p = 0; p < groups[g].params().size(); ++p) {
      auto& parameter = groups[g].params()[p];
      void* const key = parameter.unsafeGetTensorImpl();
      const auto found = spans.find(key);
      if (found == spans.end()) {
        if (frozen.contains(key)) continue;  // has no gradient, so that it is passed over
        throw Error("optim",
                    format("tensor {} of parameter group {} of {} is no parameter of the model", p,
                           g, name_),
                    "make the optimizer with parameters of the model that it is passed with");
      }
      const auto& span = arena().spans()[found->second];
      if (span.working.defined()) {
        auto& state = optimizer_->state();
        parameter = span.value.detach().requires_grad_(true);
        if (const auto own = state.find(key); own != state.end()) {
          auto moved = std::move(own->second);
          state.erase(own);
          state[parameter.unsafeGetTensorImpl()] = std::move(moved);
        }
      }
      tensors_[found->second] = parameter;
    }
  }
}

void TorchOptimizer::update(const std::vector<bool>& used, double gradient_scale) {
  const AllocationTag tag(allocation::kOptimizerState);  // which is made by the first step
  arena().refresh_masters();
  if (gradient_scale != 1) {
    for (const auto& group : arena().groups()) group.gradients.mul_(gradient_scale);
  }
  const auto spans = arena().spans();
  const auto show = [&](size_t i, bool has_gradient) {
    if (!tensors_[i].defined()) return;
    tensors_[i].mutable_grad() = has_gradient ? spans[i].gradient : torch::Tensor();
  };
  for (size_t i = 0; i < spans.size(); ++i) show(i, used[i]);
  try {
    optimizer_->step();
  } catch (...) {
    for (size_t i = 0; i < spans.size(); ++i) show(i, !spans[i].working.defined());
    throw;
  }
  check_in_place();
  for (size_t i = 0; i < spans.size(); ++i) {
    show(i, !spans[i].working.defined());  // as after backward
    if (used[i] && spans[i].working.defined()) spans[i].working.copy_(spans[i].value);
  }
}

void TorchOptimizer::check_in_place() const {
  const auto spans = arena().spans();
  for (size_t i = 0; i < spans.size(); ++i) {
    if (!tensors_[i].defined() || tensors_[i].is_alias_of(spans[i].value)) continue;
    throw Error("optim",
                format("{} replaced the data of '{}' instead of writing to it, and the model is no "
                       "longer what is trained",
                       name_, spans[i].name),
                "update in place: p.sub_(...), not p.set_data(...)");
  }
}

torch::Tensor TorchOptimizer::opaque_state() const {
  const AllocationTag tag(allocation::kSnapshot);
  ByteTensor bytes;
  torch::serialize::OutputArchive archive;
  optimizer_->save(archive);
  archive.save_to([&](const void* data, size_t size) { return bytes.append(data, size); });
  auto result = bytes.take();
  if (!is_serialisable_) {
    torch::serialize::InputArchive written;
    open(written, result);
    if (written.keys().empty()) {
      throw Error(
          "optim",
          format("{}::save() writes nothing, so that a snapshot would lose its state", name_),
          "override save() and load(), as the optimizers of LibTorch do");
    }
    is_serialisable_ = true;
  }
  return result;
}

void TorchOptimizer::set_opaque_state(const torch::Tensor& bytes) {
  torch::serialize::InputArchive archive;
  try {
    open(archive, bytes.contiguous());
    optimizer_->state().clear();  // load() leaves alone what the archive does not have
    optimizer_->load(archive);
  } catch (const c10::Error& error) {
    throw Error("optim",
                format("{}::load() does not take what the snapshot holds: {}", name_,
                       error.what_without_backtrace()),
                "resume with the optimizer that wrote it");
  }
}

}  // namespace fleet::optim
