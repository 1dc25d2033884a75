// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "fleet/applications/applications.h"
#include "fleet/core/error.h"
#include "fleet/core/options/command_line.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"
#include "fleet/io/output_check.h"
#include "fleet/io/weights.h"

#include "tools/fleet/commands.h"
#include "tools/fleet/inspect.h"
#include "tools/fleet/models.h"

namespace fleet::tool {
namespace {

struct ConvertOptions {
  std::string model;
  std::string from;
  std::string to;
  std::string dtype = "keep";
  int64_t vocab = 0;
  int64_t classes = 0;
  std::string inspect;
};

const FieldList& fields_of(const ConvertOptions*) {
  using C = ConvertOptions;
  static const FieldList list{
      .area = "convert",
      .fields = {
          field<&C::model>("model", "model whose names and shapes are expected")
              .one_of(applications::preset_names()),
          field<&C::from>("from", "safetensors file of transformers, torchvision or Fleet"),
          field<&C::to>("to", "file to write; without it, the names are only checked"),
          field<&C::dtype>("dtype", "type of the floating-point tensors in the file")
              .one_of({"keep", "F32", "F16", "BF16"}),
          field<&C::vocab>("vocab", "size of the vocabulary; 0: the model's default")
              .at_least(0)
              .in_unit("tokens"),
          field<&C::classes>("classes", "number of classes of an image model; 0: 1000")
              .at_least(0)
              .in_unit("classes"),
          field<&C::inspect>("inspect", "list the tensors of this file and do nothing else"),
      }};
  return list;
}

torch::ScalarType written_type(torch::ScalarType type, const std::string& wanted) {
  if (wanted == "keep" || !c10::isFloatingType(type)) return type;
  return wanted == "F32" ? torch::kFloat : wanted == "F16" ? torch::kHalf : torch::kBFloat16;
}

void write(const SafetensorsFile& file, const WeightsMatch& match, const ConvertOptions& options) {
  std::vector<SafetensorsItem> items;
  for (const auto& [own, entry] : match.pairs) {
    const auto type = written_type(entry->dtype, options.dtype);
    items.push_back({own.name, type, entry->shape,
                     [&file, entry = entry, type] { return file.read(*entry).to(type); }});
  }
  write_safetensors(options.to, items, {{"format", "pt"}});
}

}  // namespace

int convert(int argc, char** argv) {
  ConvertOptions options;
  parse({.about = "checks a file of weights against a model and writes it with Fleet's names",
         .groups = {{"Flags", options}},
         .examples = {"fleet convert --model bert-large --from model.safetensors --to "
                      "out.safetensors",
                      "fleet convert --inspect model.safetensors"}},
        argc, argv);
  if (!options.inspect.empty()) {
    if (!options.model.empty() || !options.from.empty() || !options.to.empty()) {
      throw UsageError("convert",
                       "--inspect lists a file and does nothing else, so that --model, --from and "
                       "--to would have no effect",
                       "give either --inspect or the others");
    }
    print_tensors(options.inspect);
    return 0;
  }
  std::vector<std::string> problems;
  if (options.model.empty())
    problems.emplace_back("--model is missing: it gives the names to expect");
  if (options.from.empty()) problems.emplace_back("--from is missing: the file to read");
  if (!problems.empty()) {
    throw UsageError::all("convert", "flags are missing:", problems,
                          "fleet convert --help lists every flag");
  }
  if (!options.to.empty()) {
    const OutputPlace to{options.to, "--to", "convert"};
    check_overwrites_nothing({to}, {{options.from, "the file of --from"}});
    check_output_file(to);
  }
  const auto model = meta_model(options.model, options.vocab, options.classes);
  const SafetensorsFile file(options.from);
  const auto match = match_weights(model, file);
  check_weights(match, file, /*strict=*/true);
  std::printf("%s\n", format("{} fits {}: {} tensors", printable(options.from), options.model,
                             match.pairs.size())
                          .c_str());
  if (options.to.empty()) return 0;
  write(file, match, options);
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(options.to));
  std::printf("%s\n", format("wrote {}, {}", printable(options.to), byte_size_text(bytes)).c_str());
  return 0;
}

}  // namespace fleet::tool
