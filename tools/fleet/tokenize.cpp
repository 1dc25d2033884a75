// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/core/options/command_line.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/core/text/printable.h"
#include "fleet/data/formats/line_reader.h"
#include "fleet/data/formats/token_file.h"
#include "fleet/data/text/sentence_pairs.h"
#include "fleet/data/text/vocabulary_trainer.h"
#include "fleet/data/text/word_piece.h"
#include "fleet/io/output_check.h"

#include "tools/fleet/commands.h"

namespace fleet::tool {
namespace {

struct TokenizeOptions {
  std::string vocab = "vocab.txt";
  std::string output;
  int64_t train_vocab = 0;
  int64_t max_seq_len = 128;
  bool lower_case = true;
  bool sentence_per_line = false;
  int64_t seed = 0;
};

const FieldList& fields_of(const TokenizeOptions*) {
  using T = TokenizeOptions;
  static const FieldList list{
      .area = "tokenize",
      .fields = {
          field<&T::output>("output", "file of samples to write; compressed if it ends in .gz"),
          field<&T::vocab>("vocab", "vocabulary, a token per line"),
          field<&T::train_vocab>(
              "train_vocab",
              "train a vocabulary of this size on the texts; 0: read it from --vocab")
              .at_least(0)
              .in_unit("tokens"),
          field<&T::max_seq_len>("max_seq_len", "longest sample, special tokens among them")
              .at_least(8)
              .in_unit("tokens"),
          field<&T::lower_case>("lower_case", "for an uncased vocabulary; strips accents too"),
          field<&T::sentence_per_line>(
              "sentence_per_line",
              "a line is a sentence, a blank line ends a document; off: prose, "
              "a file is a document"),
          field<&T::seed>("seed", "seed of the positions where samples are split").at_least(0),
      }};
  return list;
}

// Before anything is read: texts may take hours, and no input may be lost.
void check_outputs(const TokenizeOptions& options, const std::vector<std::string>& files) {
  const OutputPlace output{options.output, "--output", "tokenize"};
  const OutputPlace vocab{options.vocab, "--vocab", "tokenize"};
  std::vector<InputFile> inputs;
  for (const auto& file : files) inputs.push_back({file, "the text"});
  std::vector<OutputPlace> outputs = {output};
  if (options.train_vocab > 0) {
    outputs.insert(outputs.begin(), vocab);
  } else {
    if (!std::filesystem::exists(options.vocab)) {
      throw UsageError("tokenize", format("--vocab: there is no {}", options.vocab),
                       "name the vocabulary of a BERT, or add --train_vocab 8000 to make one from "
                       "these texts");
    }
    inputs.push_back({options.vocab, "the vocabulary"});
  }
  check_overwrites_nothing(outputs, inputs);
  for (const auto& place : outputs) check_output_file(place);
}

void train_vocabulary(const TokenizeOptions& options, const std::vector<std::string>& files) {
  if (std::filesystem::exists(options.vocab)) {
    throw UsageError("tokenize",
                     format("{} is there already, and other data may rely on it", options.vocab),
                     "give another --vocab, or leave out --train_vocab to use this one");
  }
  VocabularyTrainer trainer(
      {.size = options.train_vocab, .words = {.lower_case = options.lower_case}});
  for (const auto& file : files) {
    LineReader lines(file, LineText::kProse);
    for (std::string_view line; lines.next(line);) trainer.add(line);
  }
  const auto vocabulary = trainer.train();
  vocabulary.save(options.vocab);
  std::printf(
      "%s\n",
      format("{}: {}", printable(options.vocab), plural(vocabulary.size(), "token")).c_str());
}

struct Totals {
  int64_t samples = 0, tokens = 0, unknown = 0;
};

Totals write_samples(const TokenizeOptions& options, const std::vector<std::string>& files) {
  const WordPiece tokenizer(Vocabulary::load(options.vocab), {.lower_case = options.lower_case});
  TokenFile out(options.output, tokenizer.vocabulary());
  Totals totals;
  SentencePairs pairs({.max_seq_len = options.max_seq_len, .seed = options.seed},
                      [&](SentencePairs::Tokens first, SentencePairs::Tokens second) {
                        out.write(first, second);
                        ++totals.samples;
                      });
  const auto add = [&](std::string_view sentence) {
    const auto ids = tokenizer.encode(sentence);
    totals.tokens += std::ssize(ids);
    for (const int64_t id : ids) totals.unknown += id == *tokenizer.vocabulary().unknown() ? 1 : 0;
    pairs.add(ids);
  };
  for (const auto& file : files) {
    LineReader lines(file, LineText::kProse);
    SentenceSplitter splitter(add);
    for (std::string_view line; lines.next(line);) {
      if (!options.sentence_per_line) {
        splitter.add_line(line);
      } else if (line.find_first_not_of(" \t") == line.npos) {
        pairs.end_document();
      } else {
        add(line);
      }
    }
    splitter.finish();
    pairs.end_document();
  }
  if (totals.samples == 0) {
    throw UsageError("tokenize", "no words in the texts", "give files with text");
  }
  out.finish();
  return totals;
}

}  // namespace

int tokenize(int argc, char** argv) {
  TokenizeOptions options;
  std::vector<std::string> files;
  parse(
      {.about = "turns plain text (UTF-8, .gz too) into samples for load_digital_dataset_from_file",
       .groups = {{"Flags", options}},
       .examples = {"fleet tokenize book.txt --train_vocab 8000 --vocab vocab.txt --output "
                    "train_data/part-0.txt.gz",
                    "fleet tokenize more.txt --vocab vocab.txt --output train_data/part-1.txt.gz"},
       .positional = &files,
       .positional_help = "TEXT..."},
      argc, argv);
  std::vector<std::string> problems;
  if (files.empty()) problems.emplace_back("no text file was given");
  if (options.output.empty()) problems.emplace_back("--output says which file to write");
  if (!problems.empty()) {
    throw UsageError::all("tokenize", "the command line is not complete:", problems,
                          "fleet tokenize --help lists every flag");
  }
  check_outputs(options, files);
  if (options.train_vocab > 0) train_vocabulary(options, files);
  const auto totals = write_samples(options, files);
  std::printf("%s\n", format("{}: {}, {}, {} of them unknown", printable(options.output),
                             plural(totals.samples, "sample"), plural(totals.tokens, "token"),
                             totals.unknown)
                          .c_str());
  return 0;
}

}  // namespace fleet::tool
