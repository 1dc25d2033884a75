#include "fleet/memory/kept_value.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

#include <c10/util/StringUtil.h>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/torch_compat.h"
#include "fleet/memory/away_memory.h"
#include "fleet/memory/region.h"
#include "fleet/memory/replay_rules.h"
#include "fleet/memory/tensor_storage.h"

namespace fleet::memory {
namespace {

// All sources of all living graphs by memory: a second forward may write to a buffer that a replay
// of the first one reads.
class Sources {
 public:
  static Sources& get() {
    static auto* const sources = new Sources();
    return *sources;
  }

  void add(const c10::StorageImpl* storage, const std::shared_ptr<KeptValue>& kept) {
    const std::scoped_lock lock(mutex_);
    auto& list = by_storage_[storage];
    std::erase_if(list, [](const auto& entry) { return entry.expired(); });
    list.push_back(kept);
  }

  void remove_expired(const c10::StorageImpl* storage) {
    const std::scoped_lock lock(mutex_);
    const auto place = by_storage_.find(storage);
    if (place == by_storage_.end()) return;
    std::erase_if(place->second, [](const auto& entry) { return entry.expired(); });
    if (place->second.empty()) by_storage_.erase(place);
  }

  void remove(const c10::StorageImpl* storage, const KeptValue* kept) {
    const std::scoped_lock lock(mutex_);
    const auto place = by_storage_.find(storage);
    if (place == by_storage_.end()) return;
    std::erase_if(place->second, [&](const auto& entry) {
      const auto one = entry.lock();
      return !one || one.get() == kept;
    });
    if (place->second.empty()) by_storage_.erase(place);
  }

  std::vector<std::shared_ptr<KeptValue>> in(const c10::StorageImpl* storage) {
    std::vector<std::shared_ptr<KeptValue>> found;
    const std::scoped_lock lock(mutex_);
    const auto place = by_storage_.find(storage);
    if (place == by_storage_.end()) return found;
    for (const auto& entry : place->second) {
      if (auto kept = entry.lock()) found.push_back(std::move(kept));
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, std::vector<std::weak_ptr<KeptValue>>> by_storage_;
};

std::atomic<int64_t> g_copies{0};

}  // namespace

KeptValue::KeptValue(const torch::Tensor& tensor, const Origin& origin)
    : tensor_(tensor.tensor_data()),
      origin_(origin),
      dtype_(tensor.scalar_type()),
      version_(tensor._version()) {
  if (!is_strided(tensor)) return;
  sizes_ = {tensor.sizes().begin(), tensor.sizes().end()};
  strides_ = {tensor.strides().begin(), tensor.strides().end()};
  offset_ = tensor.storage_offset();
  bytes_ = static_cast<int64_t>(tensor.nbytes());
}

KeptValue::~KeptValue() {
  if (!is_source_ || !tensor_.defined() || is_own_) return;
  // This object no longer counts: its weak pointers have expired.
  const auto* storage = storage_of(tensor_);
  Sources::get().remove_expired(storage);
}

bool KeptValue::has_geometry_of(const torch::Tensor& tensor) const {
  return tensor.sizes() == c10::IntArrayRef(sizes_) &&
         tensor.strides() == c10::IntArrayRef(strides_) && tensor.storage_offset() == offset_;
}

bool KeptValue::is_intact() const {
  return is_here() && (is_own_ || tensor_._version() == version_);
}

void KeptValue::check_version() const {
  if (is_intact()) return;
  throw Error("recompute",
              format("a tensor {} that a recomputation reads was changed in place after the "
                     "forward: it is at version {}, and was used at version {}",
                     c10::str(c10::IntArrayRef(sizes_)), tensor_._version(), version_),
              "change it after backward, or a copy of it");
}

torch::Tensor KeptValue::get() {
  if (is_away()) come_back();
  if (!is_here()) {
    const auto owner = region();
    FLEET_ASSERT(owner, "a value was given up and nobody can rebuild it");
    owner->rebuild();
    FLEET_ASSERT(is_here(), "a replay did not bring back a value that it owes");
  }
  check_version();
  return tensor_;
}

torch::Tensor KeptValue::read() {
  if (!is_here()) get();
  auto tensor = tensor_;
  if (was_rebuilt_ && !is_source_ && --reads_left_ <= 0) give_up();
  return tensor;
}

void KeptValue::become_source() {
  if (is_source_) return;
  is_source_ = true;
  if (is_here() && !is_own_ && tensor_.has_storage()) {
    Sources::get().add(storage_of(tensor_), shared_from_this());
  }
}

void KeptValue::leave(std::shared_ptr<AwayMemory> away) {
  check_version();
  if (is_source_ && !is_own_) Sources::get().remove(storage_of(tensor_), this);
  away_ = std::move(away);
  tensor_.reset();
  is_own_ = was_rebuilt_ = false;
}

void KeptValue::come_back() {
  const compat::NoInterceptScope engine;
  const torch::NoGradGuard no_grad;
  tensor_ = torch::empty({0}, dtype_).set_(away_->fetch(), offset_, sizes_, strides_);
  is_own_ = true;
}

void KeptValue::give_up() {
  tensor_.reset();
  is_own_ = was_rebuilt_ = false;
}

void KeptValue::take_back(const torch::Tensor& tensor) {
  tensor_ = tensor.tensor_data();
  version_ = tensor._version();
  is_own_ = was_rebuilt_ = false;
  if (is_source_) Sources::get().add(storage_of(tensor_), shared_from_this());
}

void KeptValue::refill(const torch::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  tensor_ = has_geometry_of(tensor) ? tensor.tensor_data()
                                    : tensor.as_strided(sizes_, strides_, offset_).tensor_data();
  is_own_ = was_rebuilt_ = true;
  reads_left_ = readers_;
}

void KeptValue::check_same(const torch::Tensor& tensor, const std::string& op) const {
  if (tensor.scalar_type() == dtype_ && tensor.sizes() == c10::IntArrayRef(sizes_)) return;
  throw Error("recompute",
              format("{} saved a tensor {} {} for backward when it ran again, and {} {} at first",
                     op, c10::toString(tensor.scalar_type()), c10::str(tensor.sizes()),
                     c10::toString(dtype_), c10::str(c10::IntArrayRef(sizes_))),
              kHiddenState);
}

void KeptValue::copy_out() {
  const torch::NoGradGuard no_grad;
  if (!is_strided(tensor_)) {
    tensor_ = tensor_.clone();
  } else {
    // Every element from the first to the last, so that strides stay whatever they are.
    int64_t extent = 1;
    for (size_t d = 0; d < sizes_.size(); ++d) extent += (sizes_[d] - 1) * strides_[d];
    if (tensor_.numel() == 0) extent = 0;
    const auto flat = tensor_.as_strided({extent}, {1}, tensor_.storage_offset()).clone();
    tensor_ = flat.as_strided(sizes_, strides_, 0).tensor_data();
  }
  is_own_ = true;
  ++g_copies;
}

void KeptValue::before_write(const torch::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  for (const auto& kept : Sources::get().in(storage_of(tensor))) {
    if (!kept->is_here() || kept->is_own_ || storage_of(kept->tensor_) != storage_of(tensor)) {
      continue;
    }
    kept->check_version();
    kept->copy_out();
  }
}

int64_t KeptValue::copies() { return g_copies; }

}  // namespace fleet::memory
