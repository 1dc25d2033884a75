// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/image_list.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/core/xx_hash64.h"
#include "fleet/data/formats/line_reader.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;

// So many of a list's images may be missing before its root counts as wrong.
constexpr int64_t kProbes = 100;

bool is_jpeg_name(const std::string& name) {
  auto extension = fs::path(name).extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension == ".jpg" || extension == ".jpeg";
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// Names in a folder, in order, without hidden ones.
std::vector<std::string> names_in(const fs::path& folder, bool folders) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    auto name = entry.path().filename().string();
    if (!name.starts_with('.') && entry.is_directory() == folders) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

ImageList ImageList::load(const fs::path& path, const ImageListOptions& options) {
  ImageList list;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    list.read_folder(path, options);
  } else {
    list.read_file(path, options);
  }
  return list;
}

void ImageList::add(std::string_view name, int64_t label) {
  names_ += name;
  begins_.push_back(std::ssize(names_));
  labels_.push_back(static_cast<int32_t>(label));
}

std::string_view ImageList::name(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  return std::string_view(names_).substr(static_cast<size_t>(begins_[i]),
                                         static_cast<size_t>(begins_[i + 1] - begins_[i]));
}

fs::path ImageList::path(int64_t index) const {
  std::string text(name(index));
  if (lower_case_) replace_all(text, "JPEG", "jpeg");
  return root_ / text;
}

int64_t ImageList::fingerprint() const {
  XxHash64 hash;
  hash.add(names_.data(), names_.size());
  hash.add(begins_.data(), begins_.size() * sizeof(begins_[0]));
  hash.add(labels_.data(), labels_.size() * sizeof(labels_[0]));
  return static_cast<int64_t>(hash.value());
}

void ImageList::read_file(const fs::path& file, const ImageListOptions& options) {
  LineReader lines(file);
  for (std::string_view line; lines.next(line);) {
    const auto refuse = [&](const std::string& what, std::string_view fix) {
      throw UsageError("data", format("{}:{}: {}", file.string(), lines.number(), what), fix);
    };
    const size_t space = line.rfind(' ');
    const auto digits = line.substr(space == line.npos ? line.size() : space + 1);
    int64_t label = 0;
    const auto [end, failed] = std::from_chars(digits.begin(), digits.end(), label);
    const bool is_minus_zero = label == 0 && digits.starts_with('-');
    if (space == 0 || space == line.npos || failed != std::errc{} || end != digits.end() ||
        is_minus_zero) {
      refuse(format("'{}' is not a path and a label", line.substr(0, 100)),
             "each line is a path, one space, and the label as a number");
    }
    if (label < 0 || label >= options.num_classes) {
      refuse(format("label {} is outside 0..{}", label, options.num_classes - 1),
             "count labels from 0, or set num_classes");
    }
    add(line.substr(0, space), label);
  }
  if (size() == 0) {
    throw UsageError("data", format("{} lists no images", file.string()),
                     "each line is a path, one space, and the label as a number");
  }
  find_root(file, options);
}

void ImageList::find_root(const fs::path& file, const ImageListOptions& options) {
  std::vector<fs::path> roots = {options.root};
  if (options.root.empty()) {
    const fs::path folder = file.parent_path();
    roots = {folder / file.stem(), folder / (options.phase == Phase::kTrain ? "train" : "val"),
             folder};
  }
  const int64_t probes = std::min(size(), kProbes);
  for (const auto& root : roots) {
    for (const bool lower_case : {false, true}) {
      root_ = root;
      lower_case_ = lower_case;
      for (int64_t i = 0; i < probes; ++i) {
        std::error_code ignored;
        if (fs::exists(path(i), ignored)) return;
      }
    }
  }
  std::string places;
  for (const auto& root : roots)
    places += format("{}'{}'", places.empty() ? "" : ", ", root.string());
  throw UsageError("data",
                   format("of the first {} of {} none is there, such as '{}', looked for in {}",
                          plural(probes, "image"), file.string(), name(0), places),
                   "set root to the folder that the list's paths start from");
}

void ImageList::read_folder(const fs::path& folder, const ImageListOptions& options) {
  root_ = folder;
  const auto classes = names_in(folder, /*folders=*/true);
  if (classes.empty()) {
    throw UsageError("data", format("{} holds no folders of images", folder.string()),
                     "give a folder with a folder per class, or a list file");
  }
  if (std::ssize(classes) > options.num_classes) {
    throw UsageError(
        "data",
        format("{} holds {}, more than {}", folder.string(), plural(std::ssize(classes), "folder"),
               plural(options.num_classes, "class", "classes")),
        "set num_classes, or give the folder that holds the classes");
  }
  int64_t others = 0;
  for (size_t label = 0; label < classes.size(); ++label) {
    const int64_t before = size();
    for (const auto& name : names_in(folder / classes[label], /*folders=*/false)) {
      if (is_jpeg_name(name)) {
        add(classes[label] + "/" + name, static_cast<int64_t>(label));
      } else {
        ++others;
      }
    }
    if (size() == before) {
      throw UsageError("data",
                       format("{} holds no .jpg or .jpeg", (folder / classes[label]).string()),
                       "remove the folder, so that its number goes to the next class, or fill it");
    }
  }
  if (others > 0) {
    log::warn("data", format("left out, as the name does not end in .jpg or .jpeg: {} in {}",
                             plural(others, "file"), folder.string()));
  }
}

}  // namespace fleet
