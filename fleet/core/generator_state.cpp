// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/generator_state.h"

#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

namespace fleet {

struct GeneratorState::CpuState {
  explicit CpuState(at::CPUGeneratorImpl& generator)
      : engine(generator.engine().data()),
        next_float(generator.next_float_normal_sample()),
        next_double(generator.next_double_normal_sample()) {}

  bool operator==(const CpuState& other) const {
    return engine.left_ == other.engine.left_ && engine.next_ == other.engine.next_ &&
           engine.seed_ == other.engine.seed_ && engine.state_ == other.engine.state_ &&
           next_float == other.next_float && next_double == other.next_double;
  }

  at::mt19937_data_pod engine;
  std::optional<float> next_float;
  std::optional<double> next_double;
};

// Compared instead of the whole state: the counters and a few words of a Mersenne twister identify
// its state.
struct GeneratorState::CpuPosition {
  explicit CpuPosition(at::CPUGeneratorImpl& generator) {
    const auto engine = generator.engine().data();
    counters = {static_cast<int64_t>(engine.seed_), engine.left_,
                static_cast<int64_t>(engine.next_)};
    for (size_t i = 0; i < words.size(); ++i) words[i] = engine.state_[i * 89];
    next_float = generator.next_float_normal_sample();
    next_double = generator.next_double_normal_sample();
  }
  bool operator==(const CpuPosition&) const = default;

  std::array<int64_t, 3> counters;
  std::array<uint32_t, 8> words;
  std::optional<float> next_float;
  std::optional<double> next_double;
};

GeneratorState::GeneratorState(at::Generator generator) : generator_(std::move(generator)) {
  const std::scoped_lock lock(generator_.mutex());
  if (generator_.device().is_cpu()) {
    cpu_ = std::make_unique<CpuState>(*at::check_generator<at::CPUGeneratorImpl>(generator_));
  } else {
    other_ = generator_.get_state();
  }
}

GeneratorState::~GeneratorState() = default;
GeneratorState::GeneratorState(GeneratorState&&) noexcept = default;
GeneratorState& GeneratorState::operator=(GeneratorState&&) noexcept = default;

void GeneratorState::restore() const {
  auto generator = generator_;
  const std::scoped_lock lock(generator.mutex());
  if (!cpu_) return generator.set_state(other_);
  auto& cpu = *at::check_generator<at::CPUGeneratorImpl>(generator);
  at::mt19937 engine;
  engine.set_data(cpu_->engine);
  cpu.set_engine(engine);
  cpu.set_next_float_normal_sample(cpu_->next_float);
  cpu.set_next_double_normal_sample(cpu_->next_double);
}

bool GeneratorState::has_advanced() const {
  auto generator = generator_;
  const std::scoped_lock lock(generator.mutex());
  if (!cpu_) return !generator.get_state().equal(other_);
  return !(*cpu_ == CpuState(*at::check_generator<at::CPUGeneratorImpl>(generator)));
}

bool GeneratorState::set_end() {
  if (!has_advanced()) return false;
  auto generator = generator_;
  const std::scoped_lock lock(generator.mutex());
  if (cpu_) {
    cpu_end_ = std::make_unique<CpuPosition>(*at::check_generator<at::CPUGeneratorImpl>(generator));
  } else {
    other_end_ = generator.get_state();
  }
  return true;
}

bool GeneratorState::is_at_end() const {
  auto generator = generator_;
  const std::scoped_lock lock(generator.mutex());
  if (!cpu_) return generator.get_state().equal(other_end_);
  return *cpu_end_ == CpuPosition(*at::check_generator<at::CPUGeneratorImpl>(generator));
}

GeneratorState GeneratorState::of_default() {
  return GeneratorState(at::detail::getDefaultCPUGenerator());
}

}  // namespace fleet
