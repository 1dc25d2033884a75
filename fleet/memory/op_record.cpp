#include "fleet/memory/op_record.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

namespace fleet::memory {
namespace {

OpTraits traits_from(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  OpTraits traits;
  traits.name = schema.name();
  traits.results = schema.returns().size();
  for (const auto& argument : schema.arguments()) {
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    traits.writes |= written;
    traits.arguments.push_back(
        {.written = written,
         .statistics = argument.name() == "running_mean" || argument.name() == "running_var"});
  }
  traits.has_statistics = std::ranges::any_of(
      traits.arguments, [](const OpTraits::Argument& argument) { return argument.statistics; });
  for (const auto& result : schema.returns()) {
    traits.is_view |= result.alias_info() && !result.alias_info()->isWrite();
  }
  const auto separator = traits.name.find("::");
  const auto name = traits.name.substr(separator + 2);
  const bool foreign = !traits.name.starts_with("aten::");
  traits.may_draw = foreign || op.hasTag(at::Tag::nondeterministic_seeded) ||
                    std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
                      const auto optional = argument.type()->cast<c10::OptionalType>();
                      const auto type = optional ? optional->getElementType() : argument.type();
                      return type->kind() == c10::TypeKind::GeneratorType;
                    });
  traits.is_factory = name.starts_with("new_") || name.ends_with("_like");
  traits.changes_storage = name == "set_" || name == "resize_" || name == "resize_as_" ||
                           name == "set_data" || name == "swap_";
  return traits;
}

}  // namespace

const OpTraits& OpTraits::of(const c10::OperatorHandle& op) {
  // Each thread remembers what it met, so that the lock is for first meetings only.
  thread_local std::unordered_map<const c10::FunctionSchema*, const OpTraits*> met;
  auto& known = met[&op.schema()];
  if (!known) {
    static std::mutex mutex;
    static auto& all =
        *new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OpTraits>>();
    const std::scoped_lock lock(mutex);
    auto& traits = all[&op.schema()];
    if (!traits) traits = std::make_unique<OpTraits>(traits_from(op));
    known = traits.get();
  }
  return *known;
}

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

// A twister is where it was if its counters and a few of its words are.
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

bool GeneratorState::has_moved() const {
  auto generator = generator_;
  const std::scoped_lock lock(generator.mutex());
  if (!cpu_) return !generator.get_state().equal(other_);
  return !(*cpu_ == CpuState(*at::check_generator<at::CPUGeneratorImpl>(generator)));
}

bool GeneratorState::set_end() {
  if (!has_moved()) return false;
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

OpRecord::OpRecord(int number, const c10::OperatorHandle& handle, const OpTraits& what)
    : index(number),
      op(std::make_unique<c10::OperatorHandle>(handle)),
      traits(&what),
      state(compat::CallState::now()) {}

OpRecord::~OpRecord() = default;

std::shared_ptr<OpRecord> OpRecord::mask_alone() const {
  auto alone = std::make_shared<OpRecord>(index, *op, *traits);
  alone->state = state;
  alone->outputs = outputs;
  alone->saves = saves;
  alone->mask = mask;
  return alone;
}

GeneratorState GeneratorState::of_default() {
  return GeneratorState(at::detail::getDefaultCPUGenerator());
}

}  // namespace fleet::memory
