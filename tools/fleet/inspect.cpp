// SPDX-License-Identifier: Apache-2.0
#include "tools/fleet/inspect.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "fleet/core/error.h"
#include "fleet/core/options/command_line.h"
#include "fleet/core/process/standard_output.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/core/text/printable.h"
#include "fleet/io/safetensors.h"

#include "tools/fleet/commands.h"

namespace fleet::tool {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += format("{}{}", text.size() > 1 ? ", " : "", size);
  return text + "]";
}

// Operators name the folder of a snapshot, or of all of them.
[[noreturn]] void refuse_folder(const std::filesystem::path& folder) {
  constexpr auto kWeights = "model.safetensors";
  std::error_code ignored;
  auto newest = std::filesystem::exists(folder / kWeights, ignored) ? folder / kWeights
                                                                    : std::filesystem::path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const auto file = entry.path() / kWeights;
    if (std::filesystem::exists(file, ignored)) newest = std::max(newest, file);
  }
  throw UsageError("inspect", format("{} is a folder, and a file is inspected", folder.string()),
                   newest.empty() ? "name a safetensors file"
                                  : format("name a file of it: {}", newest.string()));
}

}  // namespace

void print_tensors(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) refuse_folder(path);
  const SafetensorsFile file(path);
  constexpr size_t kWidest = 80;
  size_t name_width = 4, shape_width = 5;
  for (const auto& entry : file.entries()) {
    name_width = std::max(name_width, std::min(kWidest, printable(entry.name).size()));
    shape_width = std::max(shape_width, shape_text(entry.shape).size());
  }
  std::string text = format("{:<{}}  {:<5}  {:<{}}  {:>12}\n", "name", name_width, "type", "shape",
                            shape_width, "bytes");
  int64_t numbers = 0, bytes = 0;
  for (const auto& entry : file.entries()) {
    text += format("{:<{}}  {:<5}  {:<{}}  {:>12}\n", printable(entry.name), name_width,
                   safetensors_type_name(entry.dtype), shape_text(entry.shape), shape_width,
                   entry.bytes);
    bytes += entry.bytes;
    numbers += entry.bytes / static_cast<int64_t>(c10::elementSize(entry.dtype));
  }
  text += format("{}, {}, {}\n", plural(std::ssize(file.entries()), "tensor"),
                 plural(numbers, "number"), byte_size_text(bytes));
  for (const auto& [key, value] : file.metadata())
    text += format("{}: {}\n", printable(key), printable(value));
  write_text(STDOUT_FILENO, text);
}

int inspect(int argc, char** argv) {
  std::vector<std::string> files;
  parse(
      {.about = "lists the tensors of safetensors files: name, type, shape, bytes",
       .groups = {},
       .examples = {"fleet inspect model.safetensors", "fleet inspect a.safetensors b.safetensors"},
       .positional = &files,
       .positional_help = "FILE..."},
      argc, argv);
  if (files.empty()) {
    throw UsageError("inspect", "no file was given", "fleet inspect model.safetensors");
  }
  for (const auto& file : files) {
    if (files.size() > 1) write_text(STDOUT_FILENO, printable(file) + "\n");
    print_tensors(file);
  }
  return 0;
}

}  // namespace fleet::tool
