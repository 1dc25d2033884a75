// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/text_samples.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/data/formats/line_reader.h"

namespace fleet {
namespace {

std::vector<std::filesystem::path> files_of(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.is_regular_file() && !entry.path().filename().string().starts_with('.'))
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    throw UsageError("data", format("no files in {}", path.string()),
                     "make some with fleet tokenize, or give the folder that holds them");
  }
  return files;
}

std::vector<std::filesystem::path> listed_files(const std::filesystem::path& folder,
                                                const std::string& list) {
  std::vector<std::filesystem::path> files;
  LineReader lines(folder / list);
  for (std::string_view line; lines.next(line);) {
    if (line.empty()) continue;
    files.push_back(folder / line);
    if (!std::filesystem::is_regular_file(files.back())) {
      throw UsageError(
          "data",
          format("{}:{}: there is no file {}", (folder / list).string(), lines.number(),
                 files.back().string()),
          "name files of token lines by their paths from the list's folder, one per line");
    }
  }
  if (files.empty()) {
    throw UsageError("data", format("{} names no file", (folder / list).string()),
                     "name files of token lines, one per line");
  }
  return files;
}

}  // namespace

// Parses lines, with the line number for errors.
class TextSamples::Reader {
 public:
  Reader(const Vocabulary& vocabulary, int64_t max_seq_len, TextSamples& out)
      : vocabulary_(vocabulary), max_seq_len_(max_seq_len), out_(out) {}

  void read(const std::filesystem::path& path) {
    LineReader lines(path);
    std::string_view line;
    while (lines.next(line)) {
      where_ = format("{}:{}", path.string(), lines.number());
      take(line);
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UsageError("data", format("{}: {}", where_, what),
                     "lines are token_ids;sent_ids;pos_ids;label or src_ids;input_mask;sent_ids;"
                     "masked_pos;masked_ids;masked_weight;label");
  }

  void take(std::string_view line) {
    std::vector<std::string_view> fields;
    for (size_t begin = 0; begin <= line.size();) {
      const size_t end = std::min(line.find(';', begin), line.size());
      fields.push_back(line.substr(begin, end - begin));
      begin = end + 1;
    }
    const auto count = static_cast<int64_t>(fields.size());
    if (count != 4 && count != 7) refuse(format("{} fields, where 4 or 7 are needed", count));
    if (out_.fields_ != 0 && out_.fields_ != count)
      refuse(format("{} fields, where the lines before have {}", count, out_.fields_));
    out_.fields_ = count;
    numbers(fields[0], count == 4 ? "token_ids" : "src_ids", tokens_);
    for (const int32_t id : tokens_) check_token(id);
    Line now;
    if (count == 4) {
      take_plain(fields, now);
    } else {
      take_masked(fields, now);
    }
    check_sentences(now);
    if (std::ssize(tokens_) > max_seq_len_) {
      ++out_.too_long_;
      return;
    }
    out_.append(now, tokens_, positions_, labels_);
  }

  void take_plain(const std::vector<std::string_view>& fields, Line& now) {
    numbers(fields[1], "sent_ids", sentences_);
    numbers(fields[2], "pos_ids", places_);
    same_length("sent_ids", sentences_.size());
    same_length("pos_ids", places_.size());
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_[i] != static_cast<int32_t>(i))
        refuse(format("pos_ids has {} where {} stands; they must count from 0", places_[i], i));
    }
    now.follows = label(fields[3]) == 1;
  }

  void take_masked(const std::vector<std::string_view>& fields, Line& now) {
    numbers(fields[1], "input_mask", places_);
    numbers(fields[2], "sent_ids", sentences_);
    same_length("input_mask", places_.size());
    same_length("sent_ids", sentences_.size());
    const auto used = static_cast<size_t>(
        std::find_if(places_.begin(), places_.end(), [](int32_t x) { return x != 1; }) -
        places_.begin());
    if (std::any_of(places_.begin() + static_cast<int64_t>(used), places_.end(),
                    [](int32_t x) { return x != 0; })) {
      refuse("input_mask is not ones and then zeros");
    }
    tokens_.resize(used);
    sentences_.resize(used);
    numbers(fields[3], "masked_pos", positions_);
    numbers(fields[4], "masked_ids", labels_);
    const auto weights = keep_weights(fields[5]);
    if (positions_.size() != labels_.size() || weights.size() != labels_.size()) {
      refuse(format("{} masked_pos, {} masked_ids and {} masked_weight", positions_.size(),
                    labels_.size(), weights.size()));
    }
    size_t kept = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!weights[i]) continue;
      if (static_cast<size_t>(positions_[i]) >= used)
        refuse(format("masked_pos {} is outside the {} tokens", positions_[i], used));
      check_token(labels_[i]);
      positions_[kept] = positions_[i];
      labels_[kept++] = labels_[i];
    }
    positions_.resize(kept);
    labels_.resize(kept);
    places_ = positions_;
    std::sort(places_.begin(), places_.end());
    if (std::adjacent_find(places_.begin(), places_.end()) != places_.end())
      refuse("a masked_pos occurs twice");
    now.follows = label(fields[6]) == 0;
  }

  // Weight 0 marks what only fills the fields up.
  std::vector<bool> keep_weights(std::string_view field) {
    std::vector<bool> keep;
    for_each_word(field, [&](std::string_view word) {
      double weight = -1;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), weight);
      if (error != std::errc{} || end != word.data() + word.size() || (weight != 0 && weight != 1))
        refuse(format("masked_weight '{}' is neither 0 nor 1", shortened(word)));
      keep.push_back(weight == 1);
    });
    return keep;
  }

  void check_token(int32_t id) const {
    if (id >= vocabulary_.size())
      refuse(format("token {} of a vocabulary of {}", id, vocabulary_.size()));
  }

  void check_sentences(Line& now) const {
    if (tokens_.empty()) refuse("no tokens");
    const auto second = std::find(sentences_.begin(), sentences_.end(), 1);
    if (std::any_of(sentences_.begin(), second, [](int32_t x) { return x != 0; }) ||
        std::any_of(second, sentences_.end(), [](int32_t x) { return x != 1; })) {
      refuse("sent_ids is not zeros and then ones");
    }
    now.first_length = static_cast<int32_t>(second - sentences_.begin());
    const auto separator = static_cast<int32_t>(vocabulary_.separator());
    if (tokens_.front() != vocabulary_.start() || now.first_length == 0) {
      refuse(format("the tokens begin with {} and not with [CLS], which is {} in the vocabulary",
                    tokens_.front(), vocabulary_.start()));
    }
    if (tokens_.back() != separator ||
        tokens_[static_cast<size_t>(now.first_length) - 1] != separator) {
      refuse(format("a sentence does not end with [SEP], which is {} in the vocabulary",
                    vocabulary_.separator()));
    }
    if (std::all_of(tokens_.begin(), tokens_.end(), [&](int32_t id) {
          return id == separator || id == vocabulary_.start() || id == vocabulary_.pad();
        })) {
      refuse("no token that could be masked");
    }
  }

  int64_t label(std::string_view field) {
    if (field != "0" && field != "1")
      refuse(format("label '{}' is neither 0 nor 1", shortened(field)));
    return field == "1" ? 1 : 0;
  }

  void same_length(const char* name, size_t length) const {
    if (length != tokens_.size())
      refuse(format("{} {} for {} tokens", length, name, tokens_.size()));
  }

  template <typename Take>
  void for_each_word(std::string_view field, const Take& take) const {
    for (size_t begin = 0; !field.empty() && begin <= field.size();) {
      const size_t end = std::min(field.find(' ', begin), field.size());
      take(field.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  void numbers(std::string_view field, const char* name, std::vector<int32_t>& out) const {
    out.clear();
    for_each_word(field, [&](std::string_view word) {
      int32_t value = -1;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
      if (error != std::errc{} || end != word.data() + word.size() || value < 0)
        refuse(format("'{}' in {} is no token or place", shortened(word), name));
      out.push_back(value);
    });
  }

  static std::string shortened(std::string_view word) { return std::string(word.substr(0, 40)); }

  const Vocabulary& vocabulary_;
  const int64_t max_seq_len_;
  TextSamples& out_;
  std::string where_;
  std::vector<int32_t> tokens_, sentences_, places_, positions_, labels_;  // of the line
};

TextSamples TextSamples::load(const std::filesystem::path& path, const Vocabulary& vocabulary,
                              int64_t max_seq_len, const std::string& list) {
  TextSamples samples;
  Reader reader(vocabulary, max_seq_len, samples);
  for (const auto& file : list.empty() ? files_of(path) : listed_files(path, list))
    reader.read(file);
  if (samples.too_long_ > 0) {
    log::warn("data", format("left out, as longer than {1} tokens: {0} of {2} in {3}",
                             samples.too_long_, max_seq_len,
                             plural(samples.too_long_ + samples.size(), "sample"), path.string()));
  }
  if (samples.size() == 0) {
    throw UsageError("data",
                     format("{} holds no sample of at most {} tokens", path.string(), max_seq_len),
                     samples.too_long_ > 0 ? "raise max_seq_len" : "make some with fleet tokenize");
  }
  return samples;
}

void TextSamples::add(const TextSample& sample) {
  fields_ = 4;
  append({.first_length = static_cast<int32_t>(sample.first_length), .follows = sample.follows},
         sample.tokens, {}, {});
}

void TextSamples::append(Line line, std::span<const int32_t> tokens,
                         std::span<const int32_t> positions, std::span<const int32_t> labels) {
  line.begin = std::ssize(tokens_);
  line.length = static_cast<int32_t>(tokens.size());
  line.masked = std::ssize(masked_positions_);
  line.masked_count = static_cast<int32_t>(positions.size());
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  masked_positions_.insert(masked_positions_.end(), positions.begin(), positions.end());
  masked_labels_.insert(masked_labels_.end(), labels.begin(), labels.end());
  follow_always_ &= line.follows;
  for (const int32_t id : tokens) mix(static_cast<uint64_t>(id));
  mix(static_cast<uint64_t>(line.first_length) << 1 | (line.follows ? 1 : 0));
  lines_.push_back(line);
}

TextSample TextSamples::operator[](int64_t index) const {
  const auto& line = lines_.at(static_cast<size_t>(index));
  const auto part = [](const std::vector<int32_t>& all, int64_t begin, int32_t count) {
    return std::span(all).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  };
  return {.tokens = part(tokens_, line.begin, line.length),
          .first_length = line.first_length,
          .follows = line.follows,
          .masked_positions = part(masked_positions_, line.masked, line.masked_count),
          .masked_labels = part(masked_labels_, line.masked, line.masked_count)};
}

}  // namespace fleet
