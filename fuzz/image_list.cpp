// SPDX-License-Identifier: Apache-2.0
// "path label" on each line.

#include "fleet/data/images/image_list.h"

#include "fuzz/scratch_file.h"

namespace fleet::fuzz {
namespace {

struct Item {
  std::string_view name;
  std::string_view label;
};

std::vector<Item> items_of(std::string_view text) {
  std::vector<Item> items;
  while (!text.empty()) {
    auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto space = line.rfind(' ');
    require(space != line.npos && space > 0, "a line has a path and a label");
    items.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  return items;
}

void run(Bytes bytes) {
  static const ScratchFile file("list.txt");
  const ImageListOptions options{.root = scratch_folder(), .num_classes = 100};
  ImageList list;
  if (!accepts([&] { list = ImageList::load(file.write(bytes), options); })) return;
  const auto items = items_of(text_of(bytes));
  require(list.size() > 0 && list.size() == std::ssize(items), "every line is an image");
  for (int64_t i = 0; i < list.size(); ++i) {
    const auto& [name, label] = items[static_cast<size_t>(i)];
    require(list.label(i) >= 0 && list.label(i) < options.num_classes, "labels are within limits");
    const auto digits = label.substr(std::min(label.find_first_not_of('0'), label.size()));
    require(digits == (list.label(i) == 0 ? "" : std::to_string(list.label(i))),
            "labels are what the line says");
    require(name.find("JPEG") != name.npos || list.path(i) == scratch_folder() / name,
            "paths are what the line says");
  }
  require(ImageList::load(file.path(), options).fingerprint() == list.fingerprint(),
          "read again it is the same");
}

const Target target("image_list", run);

}  // namespace
}  // namespace fleet::fuzz
