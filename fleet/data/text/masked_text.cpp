// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/masked_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/data/global_batch.h"
#include "fleet/data/position_differences.h"
#include "fleet/data/prefetcher.h"
#include "fleet/data/split_mix.h"

namespace fleet {
namespace {

// The use of a stream of random numbers: each use has its own.
enum Purpose : int64_t { kOrder = 0x4D54, kUpdates, kPairing, kMasking };

// Samples are sorted by length within as many updates as these: enough for little padding, few
// enough for an update to be a fresh mixture in every epoch.
constexpr int64_t kUpdatesPerWindow = 64;

constexpr int64_t kShortest = 8;

template <typename T>
void shuffle(std::vector<T>& list, SplitMix64 random) {
  for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random.below(i)]);
}

void check(const MaskedTextOptions& options, const Shard& shard, int64_t samples) {
  std::vector<std::string> problems;
  const auto& o = options;
  if (o.max_seq_len < kShortest)
    problems.push_back(format("max_seq_len is {}, below {}", o.max_seq_len, kShortest));
  if (o.batch_size < 1) problems.push_back(format("batch_size is {}, below 1", o.batch_size));
  if (o.in_tokens && o.batch_size < o.max_seq_len) {
    problems.push_back(format("a batch of {} tokens has no room for a sample of max_seq_len {}",
                              o.batch_size, o.max_seq_len));
  }
  if (o.prefetch < 0) problems.push_back(format("prefetch is {}, below 0", o.prefetch));
  if (shard.world_size < 1) {
    problems.push_back(format("world_size is {}, below 1", shard.world_size));
  } else if (shard.rank < 0 || shard.rank >= shard.world_size) {
    problems.push_back(format("rank {} is outside 0..{}", shard.rank, shard.world_size - 1));
  } else if (shard.world_size > samples) {
    problems.push_back(format("{} ranks are more than the {}, so some would never train",
                              shard.world_size, plural(samples, "sample")));
  }
  int64_t global_batch = 0;
  if (__builtin_mul_overflow(o.batch_size, shard.world_size, &global_batch))
    problems.push_back(
        format("batch_size {} x {} ranks overflows", o.batch_size, shard.world_size));
  if (!(o.masked_ratio > 0 && o.masked_ratio <= 1))
    problems.push_back(format("masked_ratio is {}, not above 0 and at most 1", o.masked_ratio));
  if (!problems.empty()) {
    throw UsageError::all("data", "the samples cannot be sharded", problems,
                          "choose batch_size and the number of ranks to fit the data");
  }
}

// A sample on its way into a batch.
struct Row {
  std::vector<int32_t> tokens;
  int64_t first_length = 0;
  bool follows = true;
  std::vector<int32_t> positions, labels;
};

// Truncates both sentences to at most `most` tokens: the longer one first, at its end.
Row joined(const TextSample& first, const TextSample& second, bool follows, int64_t most) {
  const auto a = first.tokens.first(static_cast<size_t>(first.first_length));
  const auto b = second.tokens.subspan(static_cast<size_t>(second.first_length));
  size_t keep_a = a.size(), keep_b = b.size();
  while (keep_a + keep_b > static_cast<size_t>(most)) --(keep_a > keep_b ? keep_a : keep_b);
  Row row{.first_length = static_cast<int64_t>(keep_a), .follows = follows};
  row.tokens.assign(a.begin(), a.begin() + static_cast<int64_t>(keep_a));
  row.tokens.back() = a.back();  // the separator
  row.tokens.insert(row.tokens.end(), b.begin(), b.begin() + static_cast<int64_t>(keep_b));
  if (keep_b > 0) row.tokens.back() = b.back();
  return row;
}

bool may_be_masked(int64_t id, const Vocabulary& vocabulary) {
  return id != vocabulary.start() && id != vocabulary.separator() && id != vocabulary.pad();
}

void mask(Row& row, SplitMix64 random, const Vocabulary& vocabulary,
          const std::vector<int32_t>& words, double share) {
  std::vector<int32_t> places;
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    if (may_be_masked(row.tokens[i], vocabulary)) places.push_back(static_cast<int32_t>(i));
  }
  const auto wanted = std::lround(share * static_cast<double>(places.size()));
  const auto count = std::min(places.size(), static_cast<size_t>(std::max<int64_t>(1, wanted)));
  for (size_t m = 0; m < count; ++m) {  // a shuffle that ends early
    std::swap(places[m], places[m + random.below(places.size() - m)]);
    auto& token = row.tokens[static_cast<size_t>(places[m])];
    row.positions.push_back(places[m]);
    row.labels.push_back(token);
    const auto draw = random.below(10);
    if (draw < 8) token = static_cast<int32_t>(vocabulary.mask());
    if (draw == 8) token = words[random.below(words.size())];
  }
}

torch::Tensor tensor_of(const std::vector<int64_t>& values) {
  return torch::tensor(values, torch::kLong);
}

}  // namespace

const FieldList& fields_of(const MaskedTextState*) {
  using S = MaskedTextState;
  static const FieldList list{
      .area = "data",
      .fields = {
          field<&S::seed>("seed", "of order and masks"),
          field<&S::epoch>("epoch", "from 0").at_least(0),
          field<&S::next_update>("next_update", "of the epoch, from 0").at_least(0),
          field<&S::samples>("samples", "in all files").at_least(0),
          field<&S::fingerprint>("fingerprint", "of the samples"),
          field<&S::global_batch>("global_batch", "batch_size x ranks").at_least(0),
          field<&S::world_size>("world_size", "ranks").at_least(1),
          field<&S::max_seq_len>("max_seq_len", "tokens").at_least(0),
          field<&S::in_tokens>("in_tokens", "batch_size counts tokens"),
          field<&S::shuffle>("shuffle", "another order in every epoch"),
      }};
  return list;
}

MaskedText::MaskedText(TextSamples samples, Vocabulary vocabulary, const MaskedTextOptions& options)
    : samples_(std::make_shared<TextSamples>(std::move(samples))),
      vocabulary_(std::make_shared<Vocabulary>(std::move(vocabulary))),
      options_(options),
      shard_(resolve_shard(options.rank, options.world_size)) {
  check(options_, shard_, samples_->size());
  for (int64_t id = 0; id < vocabulary_->size(); ++id) {
    if (!vocabulary_->is_special(id)) words_.push_back(static_cast<int32_t>(id));
  }
  if (words_.empty()) {
    throw UsageError("data", "the vocabulary has special tokens only",
                     "give the complete vocabulary");
  }
  for (int64_t i = 0; i < samples_->size(); ++i) {
    if ((*samples_)[i].has_second()) with_second_.push_back(i);
  }
  pairs_ = !with_second_.empty();
  if (samples_->is_masked() || !samples_->follow_always() || with_second_.size() < 2) {
    with_second_.clear();
  }
}

// Where sample `index` takes its second sentence from in this epoch, and whether that follows.
std::pair<int64_t, bool> MaskedText::second_of(int64_t index, int64_t epoch) const {
  const auto sample = (*samples_)[index];
  if (with_second_.empty() || !sample.has_second()) return {index, sample.follows};
  SplitMix64 random({kPairing, options_.seed, epoch, index});
  if (random.below(2) == 0) return {index, true};
  auto draw = random.below(with_second_.size() - 1);
  const auto own = std::lower_bound(with_second_.begin(), with_second_.end(), index);
  if (draw >= static_cast<uint64_t>(own - with_second_.begin())) ++draw;
  return {with_second_[draw], false};
}

int64_t MaskedText::length_of(int64_t index, int64_t epoch) const {
  const auto sample = (*samples_)[index];
  const auto [second, follows] = second_of(index, epoch);
  if (second == index) return std::ssize(sample.tokens);
  const auto other = (*samples_)[second];
  return std::min(options_.max_seq_len,
                  sample.first_length + std::ssize(other.tokens) - other.first_length);
}

MaskedText::Plan MaskedText::make_plan(int64_t epoch) const {
  Plan plan{.epoch = epoch};
  plan.order.resize(static_cast<size_t>(size()));
  std::iota(plan.order.begin(), plan.order.end(), 0);
  std::vector<int64_t> lengths(plan.order.size());
  int64_t total = 0;
  for (int64_t i = 0; i < size(); ++i)
    total += lengths[static_cast<size_t>(i)] = length_of(i, epoch);
  const auto length = [&](int64_t i) { return lengths[static_cast<size_t>(i)]; };

  const int64_t global_batch = options_.batch_size * shard_.world_size;
  if (options_.shuffle) {
    shuffle(plan.order, SplitMix64({kOrder, options_.seed, epoch}));
    const int64_t per_update = options_.in_tokens
                                   ? std::max<int64_t>(1, global_batch / (total / size() + 1))
                                   : global_batch;
    const int64_t window = std::min(size(), std::min(per_update, size()) * kUpdatesPerWindow);
    // Up and down in turns, so that lengths do not jump between windows.
    bool up = true;
    for (int64_t begin = 0; begin < size(); begin += window, up = !up) {
      std::stable_sort(
          plan.order.begin() + begin, plan.order.begin() + std::min(size(), begin + window),
          [&](int64_t a, int64_t b) { return up ? length(a) < length(b) : length(b) < length(a); });
    }
  }
  for (int64_t begin = 0; begin < size();) {
    int64_t end = begin, longest = 1;
    while (end < size()) {
      longest = std::max(longest, length(plan.order[static_cast<size_t>(end)]));
      const int64_t most =
          options_.in_tokens ? options_.batch_size / longest * shard_.world_size : global_batch;
      if (end - begin + 1 > most) break;
      ++end;
    }
    plan.updates.emplace_back(begin, end);
    begin = end;
  }
  if (options_.shuffle && plan.updates.size() > 1) {
    const auto last = plan.updates.back();  // it may be short, and stays the last
    plan.updates.pop_back();
    shuffle(plan.updates, SplitMix64({kUpdates, options_.seed, epoch}));
    plan.updates.push_back(last);
  }
  return plan;
}

const MaskedText::Plan& MaskedText::plan(int64_t epoch) const {
  if (plan_.epoch != epoch) plan_ = make_plan(epoch);
  return plan_;
}

int64_t MaskedText::updates_in(int64_t epoch) const {
  return static_cast<int64_t>(epoch == epoch_ ? plan(epoch).updates.size()
                                              : make_plan(epoch).updates.size());
}

BertBatch MaskedText::next() {
  const auto& now = plan(epoch_);
  const auto [begin, end] = now.updates[static_cast<size_t>(next_update_)];
  const auto cut = [&, begin = begin, end = end](int64_t rank) {
    return now.order.data() + begin + (end - begin) * rank / shard_.world_size;
  };
  auto batch = make_batch(cut(shard_.rank), cut(shard_.rank + 1), epoch_);
  advance();
  return batch;
}

void MaskedText::advance() {
  if (++next_update_ < std::ssize(plan(epoch_).updates)) return;
  ++epoch_;
  next_update_ = 0;
}

MaskedText::Iterator::Iterator(MaskedText* data) : data_(data), epoch_(data->epoch()) {
  const int64_t left = data->updates_in(epoch_) - data->next_update_;
  batches_ = std::make_shared<Prefetcher<BertBatch>>(
      [ahead = *data]() mutable { return ahead.next(); }, left, data->options_.prefetch);
  ++*this;
}

MaskedText::Iterator& MaskedText::Iterator::operator++() {
  current_.reset();  // before the next is awaited, so that its memory is free for reuse
  if (data_->epoch() != epoch_) return *this;
  current_ = batches_->take();
  data_->advance();
  return *this;
}

BertBatch MaskedText::make_batch(const int64_t* begin, const int64_t* end, int64_t epoch) const {
  std::vector<Row> rows;
  int64_t longest = 1;
  for (const int64_t* index = begin; index != end; ++index) {
    const auto sample = (*samples_)[*index];
    const auto [second, follows] = second_of(*index, epoch);
    auto row = joined(sample, (*samples_)[second], follows, options_.max_seq_len);
    if (samples_->is_masked()) {
      row.positions.assign(sample.masked_positions.begin(), sample.masked_positions.end());
      row.labels.assign(sample.masked_labels.begin(), sample.masked_labels.end());
    } else {
      mask(row, SplitMix64({kMasking, options_.seed, epoch, *index}), *vocabulary_, words_,
           options_.masked_ratio);
    }
    longest = std::max(longest, std::ssize(row.tokens));
    rows.push_back(std::move(row));
  }
  const auto count = std::ssize(rows);
  const auto zeros = [&] { return torch::zeros({count, longest}, torch::kLong); };
  BertBatch batch{.token_ids = torch::full({count, longest}, vocabulary_->pad(), torch::kLong),
                  .token_type_ids = zeros(),
                  .attention_mask = zeros()};
  std::vector<int64_t> positions, labels, next_sentence;
  auto* tokens = batch.token_ids.data_ptr<int64_t>();
  auto* types = batch.token_type_ids.data_ptr<int64_t>();
  auto* attended = batch.attention_mask.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const auto& row = rows[static_cast<size_t>(i)];
    const auto length = std::ssize(row.tokens);
    std::copy(row.tokens.begin(), row.tokens.end(), tokens + i * longest);
    std::fill(types + i * longest + row.first_length, types + i * longest + length, 1);
    std::fill_n(attended + i * longest, length, 1);
    for (const int32_t place : row.positions) positions.push_back(i * longest + place);
    labels.insert(labels.end(), row.labels.begin(), row.labels.end());
    next_sentence.push_back(row.follows ? 0 : 1);
  }
  batch.masked_positions = tensor_of(positions);
  batch.masked_labels = tensor_of(labels);
  if (pairs_) batch.next_sentence_labels = tensor_of(next_sentence);
  return batch;
}

torch::Tensor MaskedText::token_counts() const {
  std::vector<int64_t> counts(static_cast<size_t>(vocabulary_->size()));
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < size(); ++i) {
    const auto sample = (*samples_)[i];
    tokens.assign(sample.tokens.begin(), sample.tokens.end());
    for (size_t m = 0; m < sample.masked_positions.size(); ++m) {
      tokens[static_cast<size_t>(sample.masked_positions[m])] = sample.masked_labels[m];
    }
    for (const int32_t id : tokens) {
      if (may_be_masked(id, *vocabulary_)) ++counts[static_cast<size_t>(id)];
    }
  }
  return tensor_of(counts);
}

MaskedTextState MaskedText::state() const {
  return {.seed = options_.seed,
          .epoch = epoch_,
          .next_update = next_update_,
          .samples = size(),
          .fingerprint = samples_->fingerprint(),
          .global_batch = options_.batch_size * shard_.world_size,
          .world_size = shard_.world_size,
          .max_seq_len = options_.max_seq_len,
          .in_tokens = options_.in_tokens,
          .shuffle = options_.shuffle};
}

void MaskedText::restore(const MaskedTextState& saved) {
  const auto here = state();
  PositionDifferences differences;
  differences.compare("seed", saved.seed, here.seed);
  differences.compare_samples("number of samples", &MaskedTextState::samples, saved, here);
  differences.compare("global batch (batch_size x ranks)", saved.global_batch, here.global_batch);
  if (here.in_tokens) {
    differences.compare("number of ranks, in tokens,", saved.world_size, here.world_size);
  }
  differences.compare("max_seq_len", saved.max_seq_len, here.max_seq_len);
  differences.compare("in_tokens", saved.in_tokens, here.in_tokens);
  differences.compare("shuffle", saved.shuffle, here.shuffle);
  if (!differences.found().empty()) {
    std::string fix = "resume with the settings of the run that saved it, or start a new one";
    if (here.in_tokens && saved.world_size > 0 && saved.world_size != here.world_size) {
      fix = format("start {} ranks with --batch_size {}, as the run that saved it",
                   saved.world_size, saved.global_batch / saved.world_size);
    } else if (saved.global_batch != here.global_batch) {
      fix = global_batch_advice(saved.global_batch, here.world_size);
    }
    throw UsageError::all("data", "the saved position does not fit these data", differences.found(),
                          fix);
  }
  if (saved.epoch < 0 || saved.next_update < 0 || saved.next_update >= updates_in(saved.epoch)) {
    throw Error("data", format("there is no update {} in epoch {}", saved.next_update, saved.epoch),
                "take another snapshot; this one is damaged");
  }
  epoch_ = saved.epoch;
  next_update_ = saved.next_update;
}

MaskedText load_digital_dataset_from_file(const MaskedTextOptions& options) {
  auto vocabulary = Vocabulary::load(options.vocab_path);
  auto samples = TextSamples::load(options.data_dir, vocabulary, options.max_seq_len, options.list);
  return {std::move(samples), std::move(vocabulary), options};
}

}  // namespace fleet
