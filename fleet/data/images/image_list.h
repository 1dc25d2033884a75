// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/data/phase.h"

namespace fleet {

struct ImageListOptions {
  std::filesystem::path root = {};  ///< of a list's paths; unset: looked for
  Phase phase = Phase::kTrain;
  int64_t num_classes = 1000;  ///< labels are below this
};

/// Paths of images and their labels.
///
/// From a file, plain or gzip: "path label" on each line, one space before the label; a line that
/// is anything else is an Error which names it. Paths are relative to the root; without one, to the
/// first of these that holds one of the list's first images: for lists/train.txt, lists/train, then
/// lists/train or lists/val by the phase, then lists. Where files are called .jpeg and the list
/// says .JPEG, as in the guide's archives, the former is taken.
///
/// From a folder: a folder per class, numbered in the order of their names, with its .jpg and .jpeg
/// files in the order of theirs. Hidden files do not count; others are left out with a warning.
///
///   auto list = fleet::ImageList::load("ImageNet/train.txt");
///   list.path(0), list.label(0);
class ImageList {
 public:
  static ImageList load(const std::filesystem::path& path, const ImageListOptions& options = {});

  int64_t size() const { return static_cast<int64_t>(labels_.size()); }
  std::filesystem::path path(int64_t index) const;
  int64_t label(int64_t index) const { return labels_[static_cast<size_t>(index)]; }
  /// Of names and labels.
  int64_t fingerprint() const;

 private:
  void read_file(const std::filesystem::path& file, const ImageListOptions& options);
  void read_folder(const std::filesystem::path& folder, const ImageListOptions& options);
  void find_root(const std::filesystem::path& file, const ImageListOptions& options);
  void add(std::string_view name, int64_t label);
  std::string_view name(int64_t index) const;

  std::filesystem::path root_;
  bool lower_case_ = false;            // "JPEG" in a name means "jpeg"
  std::string names_;                  // concatenated: a million strings would take twice as much
  std::vector<int64_t> begins_ = {0};  // of each in names_, and the end
  std::vector<int32_t> labels_;
};

}  // namespace fleet
