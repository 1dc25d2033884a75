#include "fleet/core/torch_compat.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

namespace fleet::compat {
namespace {

struct ThreadObservers {
  OpObserver* ops = nullptr;
  SaveObserver* saves = nullptr;
  const char* op = nullptr;
  int backward_depth = 0;
};
thread_local ThreadObservers t_observers;

std::atomic<void (*)()> g_backward_ended{nullptr};

class Hook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hook(SaveObserver* observer) : observer_(observer) {}
  void call_pack_hook(const torch::Tensor& tensor) override { saved_ = observer_->save(tensor); }
  torch::Tensor call_unpack_hook() override { return saved_->unpack(); }

 private:
  SaveObserver* observer_;
  std::unique_ptr<SavedTensor> saved_;
};

// LibTorch's own engine, which asks who wants to see what is saved.
class ObservedEngine final : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (!t_observers.saves) return nullptr;
    return std::make_unique<Hook>(t_observers.saves);
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    struct Depth {
      Depth() { ++t_observers.backward_depth; }
      ~Depth() {
        const auto ended = g_backward_ended.load();
        if (--t_observers.backward_depth == 0 && ended) ended();
      }
    } const depth;
    const NoInterceptScope engine;
    const ObserverScope nobody(nullptr, nullptr);
    return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  static Engine& get() {
    static auto* const engine = new ObservedEngine();  // its threads outlive main
    return *engine;
  }
};

void install_engine() {
  static const bool installed = [] {
    torch::autograd::set_default_engine_stub(&ObservedEngine::get);
    return true;
  }();
  (void)installed;
}

void intercepted(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_observed(op, stack);
}

}  // namespace

ObserverScope::ObserverScope(OpObserver* ops, SaveObserver* saves)
    : ops_(std::exchange(t_observers.ops, ops)), saves_(std::exchange(t_observers.saves, saves)) {
  if (saves) install_engine();
}

ObserverScope::~ObserverScope() {
  t_observers.ops = ops_;
  t_observers.saves = saves_;
}

OpObserver* op_observer() { return t_observers.ops; }

void call_observed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const NoInterceptScope engine;
  struct Name {
    explicit Name(const char* name) : before(std::exchange(t_observers.op, name)) {}
    ~Name() { t_observers.op = before; }
    const char* before;
  } const name(op.schema().name().c_str());
  if (t_observers.ops) {
    t_observers.ops->call(op, stack);
  } else {
    op.callBoxed(stack);
  }
}

void on_backward_end(void (*ended)()) { g_backward_ended = ended; }

const char* current_op() {
  if (t_observers.op) return t_observers.op;
  if (const auto node = torch::autograd::get_current_node()) return typeid(*node).name();
  return nullptr;
}

namespace {

// Runs after every other node that a queue may hold.
struct LastNode final : torch::autograd::Node {
  LastNode() : Node(/*sequence_nr=*/0) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*gradients*/) override {
    return {};
  }
};

}  // namespace

void flush_failed_backward() {
  const NoInterceptScope engine;
  const ObserverScope nobody(nullptr, nullptr);
  const torch::AutoGradMode grad(true);
  auto root = torch::ones({1});
  auto last = c10::make_intrusive<LastNode>();
  last->add_input_metadata(root);
  torch::autograd::impl::set_gradient_edge(root, torch::autograd::Edge(std::move(last), 0));
  root.backward();
}

void pretend_history(const torch::Tensor& tensor) {
  auto node = c10::make_intrusive<torch::autograd::Error>("this graph is not for backward");
  node->add_input_metadata(tensor);
  torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::Edge(std::move(node), 0));
}

namespace {

struct LambdaPreHook final : torch::autograd::FunctionPreHook {
  explicit LambdaPreHook(std::function<void()> work) : work(std::move(work)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    work();
    return gradients;
  }
  std::function<void()> work;
};

}  // namespace

struct GradientHook::State {
  c10::intrusive_ptr<torch::autograd::Node> node;
  const torch::autograd::FunctionPreHook* before = nullptr;
  uintptr_t key = 0;
};

GradientHook::GradientHook(const torch::Tensor& parameter, std::function<void()> before,
                           std::function<void()> landed)
    : state_(std::make_unique<State>()) {
  state_->node = torch::autograd::impl::grad_accumulator(parameter);
  auto pre_hook = std::make_unique<LambdaPreHook>(std::move(before));
  state_->before = pre_hook.get();
  state_->node->add_pre_hook(std::move(pre_hook));
  state_->key =
      state_->node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [landed = std::move(landed)](const torch::autograd::variable_list& outputs,
                                       const torch::autograd::variable_list&) {
            landed();
            return outputs;
          }));
}

GradientHook::~GradientHook() {
  if (!state_) return;
  std::erase_if(state_->node->pre_hooks(),
                [&](const auto& hook) { return hook.get() == state_->before; });
  state_->node->del_post_hook(state_->key);
}

GradientHook::GradientHook(GradientHook&&) noexcept = default;

GradientHook& GradientHook::operator=(GradientHook&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

namespace {

constexpr std::string_view kNamespace = "aten::";

thread_local std::shared_ptr<const CastRules::Table> t_rules;

CastRules::Precision precision_of(size_t op) {
  return t_rules && op < t_rules->size() ? (*t_rules)[op] : CastRules::Precision::kEngine;
}

using Overloads = std::vector<c10::OperatorHandle>;

// LibTorch can list its ops, but not those of one name.
const std::map<std::string, Overloads>& engine_ops() {
  static const auto& ops = *[] {
    auto* all = new std::map<std::string, Overloads>();
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (!name.name.starts_with(kNamespace)) continue;
      const auto handle = dispatcher.findSchema(name);
      if (handle) (*all)[name.name.substr(kNamespace.size())].push_back(*handle);
    }
    return all;
  }();
  return ops;
}

bool holds_tensors(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (auto list = type->cast<c10::ListType>()) type = list->getElementType();
  return type->kind() == c10::TypeKind::TensorType;
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), holds_tensors);
}

bool returns_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(
      schema.returns(), [](const c10::Argument& result) { return result.alias_info() != nullptr; });
}

// A cast argument is a copy, so one that is written to or seen again in the result stays as it is.
bool castable(const c10::FunctionSchema& schema) {
  return takes_tensors(schema) && !schema.is_mutable() && !returns_view(schema);
}

// Batch norm writes to its running statistics although its schema does not say so. And its CPU
// kernel takes low precision with parameters in float, or everything in one type.
std::vector<bool> arguments_to_cast(const c10::FunctionSchema& schema, CastRules::Precision to) {
  const bool statistics = schema.argumentIndexWithName("running_mean").has_value();
  std::vector<bool> casts;
  for (const auto& argument : schema.arguments()) {
    const auto& name = argument.name();
    bool cast = holds_tensors(argument);
    if (statistics) cast &= name != "running_mean" && name != "running_var";
    if (statistics && to == CastRules::Precision::kLow) cast &= name != "weight" && name != "bias";
    casts.push_back(cast);
  }
  return casts;
}

class CastKernel final : public c10::OperatorKernel {
 public:
  CastKernel(size_t number, const c10::OperatorHandle& op, c10::DeviceType device)
      : number_(number),
        device_(device),
        key_(at::autocast::get_autocast_dispatch_key_from_device_type(device)),
        to_low_(arguments_to_cast(op.schema(), CastRules::Precision::kLow)),
        to_fp32_(arguments_to_cast(op.schema(), CastRules::Precision::kFp32)) {
    if (op.hasKernelForDispatchKey(key_)) {
      engine_ = op.getComputedKernelForDispatchKey(key_).kernelFunction();
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
    const auto precision = precision_of(number_);
    const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key_);
    if (precision == CastRules::Precision::kEngine) {
      if (engine_.isValid()) {
        engine_.callBoxed(op, keys, stack);
      } else {
        op.redispatchBoxed(below, stack);
      }
      return;
    }
    const bool low = precision == CastRules::Precision::kLow;
    const auto dtype = low ? at::autocast::get_autocast_dtype(device_) : torch::kFloat;
    const auto& casts = low ? to_low_ : to_fp32_;
    const NoAutocastScope no_autocast;
    auto* arguments = stack->data() + (stack->size() - casts.size());
    for (size_t i = 0; i < casts.size(); ++i) {
      if (casts[i]) cast(arguments[i], dtype);
    }
    // Below this key, not from the top: whoever intercepts ops has seen this one.
    op.redispatchBoxed(below - c10::autocast_dispatch_keyset, stack);
  }

 private:
  void cast(c10::IValue& value, torch::ScalarType dtype) const {
    const auto to = [&](const torch::Tensor& tensor) {
      return at::autocast::cached_cast(dtype, tensor, device_);
    };
    if (value.isTensor()) {
      value = to(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<torch::Tensor> tensors;
      for (const auto& tensor : value.toTensorVector()) tensors.push_back(to(tensor));
      value = std::move(tensors);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<torch::Tensor>> tensors;
      for (const std::optional<torch::Tensor> tensor : value.toOptionalTensorList()) {
        tensors.push_back(tensor ? std::optional(to(*tensor)) : std::nullopt);
      }
      value = std::move(tensors);
    }
  }

  size_t number_;
  c10::DeviceType device_;
  c10::DispatchKey key_;
  std::vector<bool> to_low_, to_fp32_;
  c10::KernelFunction engine_;  // what autocast itself does with this op; invalid: nothing
};

class SilentWarnings final : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

// The number of an op whose kernels are in place from then on. They are never taken back: other
// threads may be inside one.
size_t registered(const std::string& op) {
  static std::mutex mutex;
  static auto& numbers = *new std::map<std::string, size_t>();
  static auto& registrations = *new std::vector<c10::RegistrationHandleRAII>();
  const std::scoped_lock lock(mutex);
  const auto [place, is_new] = numbers.emplace(op, numbers.size());
  if (!is_new) return place->second;
  // The engine warns of kernels that take the place of others, which is what these are for.
  SilentWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  for (const auto& overload : engine_ops().at(op)) {
    if (!castable(overload.schema())) continue;
    for (const auto device : {at::kCPU, at::kCUDA}) {
      auto kernel = std::make_unique<CastKernel>(place->second, overload, device);
      registrations.push_back(c10::Dispatcher::singleton().registerImpl(
          overload.operator_name(),
          at::autocast::get_autocast_dispatch_key_from_device_type(device),
          c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)), std::nullopt, nullptr,
          "fleet::compat::CastRules"));
    }
  }
  return place->second;
}

}  // namespace

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const auto& [name, overloads] : engine_ops()) names.push_back(name);
  return names;
}

std::string why_not_castable(const std::string& op) {
  std::string why;
  for (const auto& overload : engine_ops().at(op)) {
    const auto& schema = overload.schema();
    if (castable(schema)) return "";
    if (!takes_tensors(schema)) {
      why = "it takes no tensor";
    } else if (schema.is_mutable()) {
      why = "it writes to an argument, whose type is given";
    } else {
      why = "it returns a view of its argument, which has that one's type";
    }
  }
  return why;
}

CastRules::CastRules(const std::vector<std::string>& low, const std::vector<std::string>& fp32) {
  Table table;
  const auto set = [&](const std::string& op, Precision precision) {
    const auto number = registered(op);
    if (number >= table.size()) table.resize(number + 1, Precision::kEngine);
    table[number] = precision;
  };
  for (const auto& op : low) set(op, Precision::kLow);
  for (const auto& op : fp32) set(op, Precision::kFp32);
  if (!table.empty()) table_ = std::make_shared<const Table>(std::move(table));
}

CastRulesScope::CastRulesScope(const CastRules& rules)
    : previous_(std::exchange(t_rules, rules.table_)) {}

CastRulesScope::~CastRulesScope() { t_rules = std::move(previous_); }

CallState CallState::now() {
  CallState state;
  state.keys_ = c10::impl::tls_local_dispatch_key_set();
  state.grad_mode_ = at::GradMode::is_enabled();
  state.cpu_dtype_ = at::autocast::get_autocast_dtype(at::kCPU);
  state.cuda_dtype_ = at::autocast::get_autocast_dtype(at::kCUDA);
  state.rules_ = t_rules;
  return state;
}

CallStateScope::CallStateScope(const CallState& state, bool grad_mode)
    : before_(CallState::now()), cache_(at::autocast::is_autocast_cache_enabled()) {
  set(state, grad_mode, /*cache=*/false);
}

CallStateScope::~CallStateScope() { set(before_, before_.grad_mode_, cache_); }

void CallStateScope::set(const CallState& state, bool grad_mode, bool cache) {
  c10::impl::_force_tls_local_dispatch_key_set(state.keys_);
  at::GradMode::set_enabled(grad_mode);
  at::autocast::set_autocast_dtype(at::kCPU, state.cpu_dtype_);
  at::autocast::set_autocast_dtype(at::kCUDA, state.cuda_dtype_);
  at::autocast::set_autocast_cache_enabled(cache);
  t_rules = state.rules_;
}

std::string missing_instructions(torch::ScalarType dtype) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto has = [&](const char* name) {
    const auto place = capabilities.find(name);
    return place != capabilities.end() && place->second.isBool() && place->second.toBool();
  };
  if (!has("sse2")) return "";  // no x86
  if (dtype == torch::kBFloat16 && !has("avx512_bf16") && !has("amx_bf16")) {
    return "AVX-512 BF16 or AMX";
  }
  if (dtype == torch::kHalf && !has("avx512_fp16") && !has("amx_fp16")) {
    return "AVX-512 FP16 or AMX-FP16";
  }
  return "";
}

}  // namespace fleet::compat

TORCH_LIBRARY_IMPL(_, FLEET_INTERCEPT_KEY, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fleet::compat::intercepted>());
}
