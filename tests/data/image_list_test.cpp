// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/image_list.h"

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;
using testing::error_message_of;

// A folder with files in it, which need not be images here.
class Files : public TemporaryFolder {
 public:
  explicit Files(const std::vector<std::string>& names) {
    for (const auto& name : names) {
      fs::create_directories((path() / name).parent_path());
      write(name, "x");
    }
  }
};

std::string refusal(const fs::path& path, const ImageListOptions& options = {}) {
  return error_message_of([&] { ImageList::load(path, options); });
}

TEST(ImageListTest, ReadsPathsAndLabels) {
  const Files files({"a/one.JPEG", "b/with space.JPEG"});
  const auto list = ImageList::load(files.write("list", "a/one.JPEG 7\r\nb/with space.JPEG 0"));
  ASSERT_EQ(list.size(), 2);
  EXPECT_EQ(list.path(0), files.path() / "a/one.JPEG");
  EXPECT_EQ(list.path(1), files.path() / "b/with space.JPEG");
  EXPECT_EQ(list.label(0), 7);
  EXPECT_EQ(list.label(1), 0);
}

TEST(ImageListTest, FindsTheRootOfTheGuidesLayouts) {
  const Files files({"val_list/a.jpg", "val/b.jpg", "train/c.jpg", "d.jpg", "elsewhere/d.jpg"});
  const auto first = [&](const std::string& list, const ImageListOptions& options) {
    return ImageList::load(files.path() / list, options).path(0);
  };
  files.write("val_list.txt", "a.jpg 0\n");
  EXPECT_EQ(first("val_list.txt", {}), files.path() / "val_list/a.jpg");
  files.write("x.txt", "missing.jpg 0\nb.jpg 0\n");
  EXPECT_EQ(first("x.txt", {.phase = Phase::kTest}), files.path() / "val/missing.jpg");
  files.write("y.txt", "c.jpg 0\n");
  EXPECT_EQ(first("y.txt", {}), files.path() / "train/c.jpg");
  files.write("z.txt", "d.jpg 0\n");
  EXPECT_EQ(first("z.txt", {}), files.path() / "d.jpg");
  EXPECT_EQ(first("z.txt", {.root = files.path() / "elsewhere"}), files.path() / "elsewhere/d.jpg");
}

TEST(ImageListTest, TakesLowerCaseNamesWhereTheListHasUpperCase) {
  const Files files({"n01/a.jpeg", "n01/b.jpeg"});
  const auto list = ImageList::load(files.write("train.txt", "n01/a.JPEG 0\nn01/b.JPEG 1\n"));
  EXPECT_EQ(list.path(1), files.path() / "n01/b.jpeg");
}

TEST(ImageListTest, NumbersClassFoldersByName) {
  const Files files({"zebra/2.jpg", "ant/10.JPEG", "ant/1.Jpg", "ant/notes.txt", "ant/.hidden.jpg",
                     ".git/x.jpg", "list.txt"});
  const auto list = ImageList::load(files.path());
  ASSERT_EQ(list.size(), 3);
  EXPECT_EQ(list.path(0), files.path() / "ant/1.Jpg");
  EXPECT_EQ(list.path(1), files.path() / "ant/10.JPEG");
  EXPECT_EQ(list.path(2), files.path() / "zebra/2.jpg");
  EXPECT_EQ(list.label(1), 0);
  EXPECT_EQ(list.label(2), 1);
}

TEST(ImageListTest, NamesTheBadLine) {
  const Files files({"a.jpg"});
  const auto of = [&](const std::string& text) { return refusal(files.write("l.txt", text)); };
  const char* fix = "each line is a path, one space, and the label as a number";
  EXPECT_TRUE(says(of("a.jpg 0\na.jpg\n"), "l.txt:2: 'a.jpg' is not a path and a label", fix));
  EXPECT_TRUE(says(of("a.jpg 0\n\na.jpg 1\n"), "l.txt:2: '' is not a path and a label"));
  EXPECT_TRUE(says(of("a.jpg one\n"), "l.txt:1: 'a.jpg one' is not"));
  EXPECT_TRUE(says(of("a.jpg 1 \n"), "l.txt:1: 'a.jpg 1 ' is not"));
  EXPECT_TRUE(says(of("a.jpg 1.5\n"), "l.txt:1:"));
  EXPECT_TRUE(says(of("a.jpg -0\n"), "l.txt:1: 'a.jpg -0' is not"));
  EXPECT_TRUE(says(of(" 1\n"), "l.txt:1: ' 1' is not"));
  EXPECT_TRUE(says(of("a.jpg 99999999999999999999\n"), "l.txt:1:"));
  EXPECT_TRUE(says(of("a.jpg 999\na.jpg 1000\n"), "l.txt:2: label 1000 is outside 0..999",
                   "count labels from 0, or set num_classes"));
  EXPECT_TRUE(says(of("a.jpg -1\n"), "l.txt:1: label -1 is outside 0..999"));
}

TEST(ImageListTest, RefusesWhatHoldsNoImages) {
  const Files files({"empty/x/notes.txt", "flat/a.jpg", "two/a/1.jpg", "two/b/1.jpg"});
  const auto folder = files.path();
  EXPECT_TRUE(says(refusal(folder / "none.txt"), "cannot read", "none.txt", "No such file"));
  EXPECT_TRUE(says(refusal(files.write("l.txt", "")), "l.txt lists no images"));
  EXPECT_TRUE(says(refusal(files.write("m.txt", "n/x.jpg 0\n")), "of the first 1 image of",
                   "m.txt none is there, such as 'n/x.jpg'", "set root to the folder"));
  EXPECT_TRUE(says(refusal(folder / "flat"), "flat holds no folders of images"));
  EXPECT_TRUE(says(refusal(folder / "empty"), "empty/x holds no .jpg or .jpeg"));
  EXPECT_TRUE(
      says(refusal(folder / "two", {.num_classes = 1}), "two holds 2 folders, more than 1 class"));
}

TEST(ImageListTest, FingerprintSeesNamesAndLabels) {
  const Files files({"a.jpg", "b.jpg"});
  std::vector<int64_t> seen;
  for (const char* text : {"a.jpg 0\nb.jpg 1\n", "a.jpg 0\nb.jpg 2\n", "b.jpg 0\na.jpg 1\n"})
    seen.push_back(ImageList::load(files.write("l.txt", text)).fingerprint());
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_NE(seen[0], seen[2]);
}

}  // namespace
}  // namespace fleet
