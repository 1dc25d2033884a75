// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/parallel_text.h"

#include <algorithm>

#include <ATen/ops/full.h>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/data/formats/line_reader.h"

namespace fleet {
namespace {

std::vector<int32_t> tokens_of(std::string_view line, const WordPiece& tokenizer) {
  const auto ids = tokenizer.encode(line);
  std::vector<int32_t> tokens(ids.begin(), ids.end());
  tokens.push_back(static_cast<int32_t>(tokenizer.vocabulary().separator()));
  return tokens;
}

torch::Tensor padded(const std::vector<const std::vector<int32_t>*>& rows, int64_t pad) {
  int64_t longest = 1;
  for (const auto* row : rows) longest = std::max(longest, std::ssize(*row));
  auto out = torch::full({std::ssize(rows), longest}, pad, torch::kInt64);
  auto* place = out.data_ptr<int64_t>();
  for (const auto* row : rows) {
    std::copy(row->begin(), row->end(), place);
    place += longest;
  }
  return out;
}

}  // namespace

ParallelText::ParallelText(const std::filesystem::path& source, const std::filesystem::path& target,
                           const WordPiece& tokenizer, int64_t max_length)
    : pad_(tokenizer.vocabulary().pad()) {
  LineReader sources(source, LineText::kProse), targets(target, LineText::kProse);
  const auto start = static_cast<int32_t>(tokenizer.vocabulary().start());
  for (std::string_view from, to;;) {
    const bool more_from = sources.next(from), more_to = targets.next(to);
    if (more_from != more_to) {
      throw UsageError("data",
                       format("{} continues after line {}, where {} ends",
                              (more_from ? source : target).string(),
                              (more_from ? sources : targets).number() - 1,
                              (more_from ? target : source).string()),
                       "give two files whose lines belong together");
    }
    if (!more_from) break;
    Pair pair{tokens_of(from, tokenizer), tokens_of(to, tokenizer)};
    if ((pair.source.size() == 1) != (pair.target.size() == 1)) {
      const bool from_is_empty = pair.source.size() == 1;
      throw UsageError("data",
                       format("{}:{} is empty, and its translation is not",
                              (from_is_empty ? source : target).string(), sources.number()),
                       "take both lines out");
    }
    if (pair.source.size() == 1) continue;
    if (std::ssize(pair.source) > max_length || std::ssize(pair.target) > max_length) {
      ++too_long_;
      continue;
    }
    pair.target.insert(pair.target.begin(), start);
    pairs_.push_back(std::move(pair));
  }
  if (too_long_ > 0) {
    log::warn("data", format("left out, as longer than {1} tokens: {0} of {2} in {3}", too_long_,
                             max_length, plural(too_long_ + size(), "pair"), source.string()));
  }
  if (pairs_.empty()) {
    throw UsageError("data",
                     format("{} and {} hold no pair of at most {} tokens", source.string(),
                            target.string(), max_length),
                     too_long_ > 0 ? "allow longer ones" : "give files with text");
  }
}

Batch ParallelText::get(std::span<const int64_t> indices, int64_t) const {
  std::vector<const std::vector<int32_t>*> sources, targets;
  for (const int64_t index : indices) {
    const auto& pair = pairs_.at(static_cast<size_t>(index));
    sources.push_back(&pair.source);
    targets.push_back(&pair.target);
  }
  return {padded(sources, pad_), padded(targets, pad_)};
}

}  // namespace fleet
