#include "fleet/memory/region.h"

#include <algorithm>
#include <atomic>

#include "fleet/core/error.h"
#include "fleet/memory/replay.h"
#include "fleet/memory/replay_need.h"

namespace fleet::memory {
namespace {

std::atomic<int64_t> g_alive{0};

// What replays brought back goes at the end of a backward at the latest: with retain_graph nobody
// else would let go of it. By thread: others may be in the middle of theirs.
class Rebuilt {
 public:
  static Rebuilt& of_this_thread() {
    static const bool listening = [] {
      compat::on_backward_end([] { of_this_thread().give_up(); });
      return true;
    }();
    (void)listening;
    thread_local Rebuilt rebuilt;
    return rebuilt;
  }
  void add(const std::shared_ptr<KeptValue>& kept) { kept_.push_back(kept); }

 private:
  void give_up() {
    for (const auto& entry : kept_) {
      if (const auto kept = entry.lock()) kept->give_up_rebuilt();
    }
    kept_.clear();
  }
  std::vector<std::weak_ptr<KeptValue>> kept_;
};

}  // namespace

Region::Region(std::shared_ptr<Region> parent, std::shared_ptr<const Ledger> ledger, int first_op)
    : parent_(std::move(parent)),
      ledger_(std::move(ledger)),
      first_op_(first_op),
      depth_(parent_ ? parent_->depth_ + 1 : 0) {
  ++g_alive;
}

Region::~Region() { --g_alive; }

int64_t Region::alive() { return g_alive; }

bool Region::contains(const Region* other) const {
  while (other && other->depth_ > depth_) other = other->parent_.get();
  return other == this;
}

Region* Region::common(Region* a, Region* b) {
  while (a != b) {
    auto*& deeper = a->depth_ >= b->depth_ ? a : b;
    deeper = deeper->parent_.get();
  }
  return a;
}

void Region::add(const std::shared_ptr<KeptValue>& kept) {
  kept->set_region(shared_from_this());
  members_.push_back(kept);
}

std::vector<std::shared_ptr<KeptValue>> Region::members() {
  std::vector<std::shared_ptr<KeptValue>> living;
  for (const auto& entry : members_) {
    auto kept = entry.lock();
    // It may have gone over to a region further out since.
    if (kept && kept->region().get() == this) living.push_back(std::move(kept));
  }
  return living;
}

void Region::set_open_records(const OpRecords* records) {
  const std::scoped_lock lock(mutex_);
  open_records_ = records;
}

void Region::abandon() {
  const std::scoped_lock lock(mutex_);
  open_records_ = nullptr;
  is_abandoned_ = true;
}

Region::Dropped Region::drop(const std::vector<std::shared_ptr<OpRecord>>& records) {
  const std::scoped_lock lock(mutex_);
  Dropped result;
  ReplayNeed need(*this, *ledger_, records);
  const auto record_of = [&](int op) {
    return std::ranges::lower_bound(records, op, {}, [](const auto& r) { return r->index; })->get();
  };
  std::vector<std::shared_ptr<KeptValue>> dropped;
  for (auto& kept : members()) {
    const auto& origin = kept->origin();
    if (!need.possible(*kept)) {
      FLEET_ASSERT(kept->is_here(), "a value was given up that cannot be made again");
      kept->set_region(nullptr);
      const int op = origin.op >= 0 ? origin.op : ledger_->value(origin.value).producer;
      result.kept.emplace_back(record_of(op)->traits->name, kept->bytes());
      continue;
    }
    need.mark(*kept);
    if (origin.op >= 0 && kept->is_here()) {
      remember_mask(*record_of(origin.op), origin.save, kept->tensor());
    }
    result.bytes += kept->bytes();
    dropped.push_back(std::move(kept));
  }
  for (size_t i = 0; i < records.size(); ++i) {
    if (need.is_needed(i)) records_.push_back(records[i]);
  }
  // Last, so that an error before it leaves everything where it was.
  open_records_ = nullptr;
  for (const auto& kept : dropped) kept->give_up();
  result.values = std::ssize(dropped);
  return result;
}

void Region::hand_over(Region* outer) {
  const std::scoped_lock lock(mutex_);
  for (const auto& kept : members()) {
    if (outer) {
      outer->add(kept);
    } else {
      kept->set_region(nullptr);
    }
  }
  members_.clear();
  open_records_ = nullptr;
}

void Region::remember_mask(OpRecord& record, int save, const torch::Tensor& mask) {
  if (record.traits->name != "aten::dropout" || record.saves != 1 || save != 0) return;
  try {
    record.mask = MaskBits::of(mask);
  } catch (const c10::OutOfMemoryError&) {
    return;  // then it is drawn again
  }
  if (record.mask) record.draws.reset();
}

// In the middle of a forward, for a gradient that is taken inside of it, all that it has so far.
std::vector<std::shared_ptr<OpRecord>> Region::records_now() const {
  if (!open_records_) return records_;
  const auto& all = open_records_->records;
  return {all.begin() + (first_op_ - open_records_->first_op), all.end()};
}

void Region::rebuild() {
  const std::scoped_lock lock(mutex_);
  if (is_abandoned_) {
    throw Error("recompute",
                "the forward ended with an error before its segment did, so what it gave up cannot "
                "be computed again",
                "call the forward again before backward");
  }
  std::vector<std::shared_ptr<KeptValue>> wanted, at_hand = sources_;
  for (auto& kept : members()) {
    if (kept->is_intact()) {
      at_hand.push_back(std::move(kept));
    } else if (!kept->is_here()) {
      wanted.push_back(std::move(kept));
    }
  }
  if (wanted.empty()) return;
  for (const auto& kept : wanted) Rebuilt::of_this_thread().add(kept);
  replay(*this, *ledger_, records_now(), wanted, at_hand);
}

}  // namespace fleet::memory
