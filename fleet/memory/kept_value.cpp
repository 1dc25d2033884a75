#include "fleet/memory/kept_value.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/StringUtil.h>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/tensor_memory.h"
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
    by_storage_[storage].push_back({.kept = kept.get(), .weak = kept});
    ++size_;
  }

  void remove(const c10::StorageImpl* storage, const KeptValue* kept) {
    const std::scoped_lock lock(mutex_);
    const auto place = by_storage_.find(storage);
    if (place == by_storage_.end()) return;
    size_ -= static_cast<int64_t>(
        std::erase_if(place->second, [&](const Entry& entry) { return entry.kept == kept; }));
    if (place->second.empty()) by_storage_.erase(place);
  }

  std::vector<std::shared_ptr<KeptValue>> in(const c10::StorageImpl* storage) {
    std::vector<std::shared_ptr<KeptValue>> found;
    const std::scoped_lock lock(mutex_);
    const auto place = by_storage_.find(storage);
    if (place == by_storage_.end()) return found;
    for (const auto& entry : place->second) {
      if (auto kept = entry.weak.lock()) found.push_back(std::move(kept));
    }
    return found;
  }

  int64_t size() {
    const std::scoped_lock lock(mutex_);
    return size_;
  }

 private:
  struct Entry {
    const KeptValue* kept;  // outlives `weak` by its destructor
    std::weak_ptr<KeptValue> weak;
  };
  std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, std::vector<Entry>> by_storage_;
  int64_t size_ = 0;
};

std::atomic<int64_t> g_copies{0};

}  // namespace

KeptValue::KeptValue(const torch::Tensor& tensor, const Origin& origin)
    : tensor_(tensor.tensor_data()),
      origin_(origin),
      dtype_(tensor.scalar_type()),
      version_(tensor._version()),
      is_strided_(is_strided(tensor)) {
  if (!is_strided_) return;
  sizes_ = {tensor.sizes().begin(), tensor.sizes().end()};
  strides_ = {tensor.strides().begin(), tensor.strides().end()};
  offset_ = tensor.storage_offset();
  bytes_ = static_cast<int64_t>(tensor.nbytes());
  is_conj_ = tensor.is_conj();
  is_neg_ = tensor.is_neg();
}

KeptValue::~KeptValue() { unlist(); }

bool KeptValue::has_geometry_of(const torch::Tensor& tensor) const {
  if (!is_strided_ || !is_strided(tensor)) return is_strided_ == is_strided(tensor);
  return tensor.sizes() == c10::IntArrayRef(sizes_) &&
         tensor.strides() == c10::IntArrayRef(strides_) && tensor.storage_offset() == offset_ &&
         tensor.is_conj() == is_conj_ && tensor.is_neg() == is_neg_;
}

bool KeptValue::is_intact() const {
  return is_here() && !is_lost_ && (is_own_ || tensor_._version() == version_);
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
  is_source_ = true;
  list_as_source();
}

void KeptValue::list_as_source() {
  if (!is_source_ || listed_in_ || !is_here() || is_own_) return;
  listed_in_ = compat::storage_written_to(tensor_);
  if (listed_in_) Sources::get().add(listed_in_, shared_from_this());
}

void KeptValue::unlist() {
  if (const auto* storage = std::exchange(listed_in_, nullptr)) {
    Sources::get().remove(storage, this);
  }
}

// Memory of its own: nobody else writes to it.
void KeptValue::hold(torch::Tensor tensor) {
  unlist();
  tensor_ = std::move(tensor);
  is_own_ = true;
}

void KeptValue::let_go() {
  unlist();
  tensor_.reset();
  is_own_ = was_rebuilt_ = false;
}

void KeptValue::leave(std::shared_ptr<AwayMemory> away) {
  check_version();
  away_ = std::move(away);
  let_go();
}

void KeptValue::come_back() {
  const compat::NoInterceptScope engine;
  const torch::NoGradGuard no_grad;
  auto tensor = torch::empty({0}, dtype_).set_(away_->fetch(), offset_, sizes_, strides_);
  tensor._set_conj(is_conj_);
  tensor._set_neg(is_neg_);
  hold(std::move(tensor));
}

void KeptValue::give_up() { let_go(); }

void KeptValue::take_back(const torch::Tensor& tensor) {
  let_go();
  tensor_ = tensor.tensor_data();
  version_ = tensor._version();
  list_as_source();
}

void KeptValue::refill(const torch::Tensor& tensor) {
  // Where it lies in its storage may differ: a replay can start from a copy of a view.
  const bool is_as_it_was = !is_strided_ || origin_.op >= 0 ||
                            (!origin_.is_view && tensor.sizes() == c10::IntArrayRef(sizes_) &&
                             tensor.strides() == c10::IntArrayRef(strides_) &&
                             tensor.is_conj() == is_conj_ && tensor.is_neg() == is_neg_);
  hold(is_as_it_was
           ? tensor.tensor_data()
           : compat::strided_view(tensor, sizes_, strides_,
                                  tensor.storage_offset() + origin_.from_value, is_conj_, is_neg_)
                 .tensor_data());
  was_rebuilt_ = true;
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
  if (!is_strided_) {
    hold(tensor_.clone());
  } else {
    // Every element from the first to the last, so that strides stay whatever they are.
    const auto range = range_of(tensor_);
    const auto elements = (range.end - range.begin) / static_cast<int64_t>(tensor_.element_size());
    const auto flat =
        compat::strided_view(tensor_, {elements}, {1}, tensor_.storage_offset(), false, false)
            .clone();
    hold(compat::strided_view(flat, sizes_, strides_, 0, is_conj_, is_neg_).tensor_data());
  }
  ++g_copies;
}

void KeptValue::before_write(const torch::Tensor& tensor) {
  const auto* const storage = compat::storage_written_to(tensor);
  if (!storage) return;
  const auto sources = Sources::get().in(storage);
  if (sources.empty()) return;
  const bool is_partial = is_strided(tensor);
  const auto written = is_partial ? range_of(tensor) : ByteRange();
  for (const auto& kept : sources) {
    if (!kept->is_intact()) {  // whoever reads it hears of that
      kept->is_lost_ = true;
      kept->unlist();
    } else if (!is_partial || !kept->is_strided_ || range_of(kept->tensor_).overlaps(written)) {
      kept->copy_out();
    }
  }
}

void KeptValue::after_write(const torch::Tensor& tensor) {
  const auto* const storage = compat::storage_written_to(tensor);
  if (!storage) return;
  for (const auto& kept : Sources::get().in(storage)) kept->version_ = kept->tensor_._version();
}

int64_t KeptValue::listed_sources() { return Sources::get().size(); }

int64_t KeptValue::copies() { return g_copies; }

}  // namespace fleet::memory
