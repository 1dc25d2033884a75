// SPDX-License-Identifier: Apache-2.0
// Files of token lines (fleet/data/text/text_samples.h), in both of their formats.

#include <algorithm>

#include "fleet/data/formats/token_file.h"
#include "fleet/data/text/text_samples.h"

#include "fuzz/scratch_file.h"
#include "fuzz/small_vocabulary.h"

namespace fleet::fuzz {
namespace {

constexpr int64_t kMaxTokens = 64;

bool are_equal(const TextSample& a, const TextSample& b) {
  return std::ranges::equal(a.tokens, b.tokens) && a.first_length == b.first_length &&
         a.follows == b.follows;
}

void check(const TextSample& sample) {
  const auto length = std::ssize(sample.tokens);
  const auto is_known = [](int32_t id) { return id >= 0 && id < small_vocabulary().size(); };
  require(length > 0 && length <= kMaxTokens, "a sample is not longer than allowed");
  require(std::ranges::all_of(sample.tokens, is_known), "tokens are in the vocabulary");
  require(sample.first_length > 1 && sample.first_length <= length, "a sentence lies in the line");
  require(sample.masked_positions.size() == sample.masked_labels.size(), "a label per position");
  require(std::ranges::all_of(sample.masked_labels, is_known), "labels are in the vocabulary");
  for (const int32_t at : sample.masked_positions)
    require(at >= 0 && at < length, "positions lie in the line");
}

// What `fleet tokenize` could have written; a second sentence of no tokens it could not.
bool can_be_written(const TextSample& sample) {
  return sample.follows && std::ssize(sample.tokens) != sample.first_length + 1;
}

void write(TokenFile& file, const TextSample& sample) {
  const auto part = [&](int64_t begin, int64_t end) {
    return std::vector<int64_t>(sample.tokens.begin() + begin, sample.tokens.begin() + end);
  };
  const auto length = std::ssize(sample.tokens);
  file.write(part(1, sample.first_length - 1),
             sample.has_second() ? part(sample.first_length, length - 1) : std::vector<int64_t>());
}

void run(Bytes bytes) {
  static const ScratchFile input("tokens.txt");
  TextSamples samples;
  if (!accepts(
          [&] { samples = TextSamples::load(input.write(bytes), small_vocabulary(), kMaxTokens); }))
    return;
  require(samples.size() > 0, "there is a sample");
  std::vector<int64_t> writable;
  for (int64_t i = 0; i < samples.size(); ++i) {
    check(samples[i]);
    if (can_be_written(samples[i])) writable.push_back(i);
  }
  if (samples.is_masked() || writable.empty()) return;
  const auto copy = scratch_folder() / "copy.txt";
  TokenFile file(copy, small_vocabulary());
  for (const int64_t i : writable) write(file, samples[i]);
  file.finish();
  const auto again = TextSamples::load(copy, small_vocabulary(), kMaxTokens);
  require(again.size() == std::ssize(writable), "written again there are as many");
  for (size_t i = 0; i < writable.size(); ++i)
    require(are_equal(again[static_cast<int64_t>(i)], samples[writable[i]]),
            "written again they are the same");
}

const Target target("token_lines", run);

}  // namespace
}  // namespace fleet::fuzz
