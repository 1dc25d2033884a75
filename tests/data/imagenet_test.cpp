// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/imagenet.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/images/image_files.h"
#include "fleet/data/images/image_resize.h"
#include "fleet/data/images/synthetic_images.h"

#include "tests/data/jpeg_pictures.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

constexpr int64_t kImages = 23;

// Images of different sizes and kinds; the label is the image's number.
class Pictures : public TemporaryFolder {
 public:
  explicit Pictures(int64_t images = kImages) {
    std::string text;
    for (int64_t i = 0; i < images; ++i) {
      const auto name = format("{}.jpg", i);
      write(name, as_text(jpeg_of_waves(40 + 7 * i, 90 - 2 * i, i % 3 == 1 ? 1 : 3)));
      text += format("{} {}\n", name, i);
    }
    write("list.txt", text);
  }

  DataLoader<> load(const ImagenetOptions& options) const {
    return load_imagenet_from_file(path() / "list.txt", options);
  }
};

std::vector<Batch> all_of(DataLoader<>& loader) {
  std::vector<Batch> batches;
  for (const Batch& batch : loader) batches.push_back(batch);
  return batches;
}

bool same(const Batch& a, const Batch& b) {
  return torch::equal(a.data, b.data) && torch::equal(a.target, b.target);
}

TEST(ImagenetTest, ThreadsDoNotChangeTheImages) {
  const Pictures pictures;
  const auto epoch_with = [&](int64_t threads, int64_t prefetch) {
    auto loader = pictures.load(
        {.batch_size = 5, .image_size = 32, .seed = 3, .threads = threads, .prefetch = prefetch});
    return all_of(loader);
  };
  const auto expected = epoch_with(1, 0);
  ASSERT_EQ(expected.size(), 5u);
  EXPECT_EQ(expected[4].size(), 3);
  for (const int64_t threads : {1, 2, 4}) {
    const auto got = epoch_with(threads, 2);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], expected[i])) << threads;
  }
}

TEST(ImagenetTest, RanksSeeTheImagesOfOneLargerRank) {
  const Pictures pictures;
  const ImagenetOptions one{.batch_size = 6, .image_size = 32, .seed = 3, .threads = 1};
  auto whole_loader = pictures.load(one);
  const auto whole = all_of(whole_loader);
  for (const int64_t ranks : {2, 3}) {
    std::vector<std::vector<Batch>> parts;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      auto options = one;
      options.batch_size = 6 / ranks;
      options.rank = rank;
      options.world_size = ranks;
      auto loader = pictures.load(options);
      parts.push_back(all_of(loader));
      ASSERT_EQ(parts.back().size(), whole.size()) << "ranks must stay in step";
    }
    for (size_t i = 0; i < whole.size(); ++i) {
      std::vector<torch::Tensor> data, target;
      for (const auto& part : parts) {
        data.push_back(part[i].data);
        target.push_back(part[i].target);
      }
      EXPECT_TRUE(same({torch::cat(data), torch::cat(target)}, whole[i])) << ranks << " ranks";
    }
  }
}

TEST(ImagenetTest, EveryEpochAndSeedDrawsAnew) {
  const Pictures pictures;
  auto loader = pictures.load({.batch_size = kImages, .shuffle = false, .image_size = 32});
  auto other_seed =
      pictures.load({.batch_size = kImages, .shuffle = false, .image_size = 32, .seed = 1});
  const auto first = all_of(loader), second = all_of(loader), other = all_of(other_seed);
  EXPECT_TRUE(torch::equal(first[0].target, torch::arange(kImages)));
  EXPECT_TRUE(torch::equal(second[0].target, torch::arange(kImages)));
  for (int64_t i = 0; i < kImages; ++i) {
    EXPECT_FALSE(torch::equal(first[0].data[i], second[0].data[i])) << i;
    EXPECT_FALSE(torch::equal(first[0].data[i], other[0].data[i])) << i;
  }
}

TEST(ImagenetTest, ResumesAsIfNeverStopped) {
  const Pictures pictures;
  const ImagenetOptions options{
      .batch_size = 2, .image_size = 16, .seed = 9, .rank = 1, .world_size = 2, .threads = 2};
  auto straight = pictures.load(options);
  std::vector<Batch> expected;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const Batch& batch : straight) expected.push_back(batch);
  }
  ASSERT_EQ(expected.size(), 12u);
  for (const size_t stop : {1u, 4u, 6u, 11u}) {
    std::vector<Batch> got;
    auto stopped = pictures.load(options);
    while (got.size() < stop) {
      for (const Batch& batch : stopped) {
        got.push_back(batch);
        if (got.size() == stop) break;
      }
    }
    auto resumed = pictures.load(options);
    resumed.restore(stopped.state());
    while (resumed.state().epoch < 2) {
      for (const Batch& batch : resumed) got.push_back(batch);
    }
    ASSERT_EQ(got.size(), expected.size()) << "stopped after " << stop;
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], expected[i])) << stop;
  }
}

TEST(ImagenetTest, ResumesOnAnotherNumberOfRanks) {
  const Pictures pictures;
  auto two = pictures.load({.batch_size = 2, .image_size = 16, .rank = 0, .world_size = 2});
  auto position = two.begin();
  auto one = pictures.load({.batch_size = 4, .image_size = 16});
  one.restore(two.state());
  ++position;
  EXPECT_TRUE(same(one.begin()->slice(0, 2), *position));
}

TEST(ImagenetTest, RefusesAPositionInOtherImages) {
  const Pictures pictures, fewer(kImages - 1);
  auto loader = pictures.load({.batch_size = 2});
  EXPECT_TRUE(says(error_message_of([&] { fewer.load({.batch_size = 2}).restore(loader.state()); }),
                   "data set size was 23 and is now 22"));
  std::string text = "1.jpg 0\n";
  for (int64_t i = 1; i < kImages; ++i) text += format("{}.jpg 0\n", i);
  pictures.write("list.txt", text);
  EXPECT_TRUE(
      says(error_message_of([&] { pictures.load({.batch_size = 2}).restore(loader.state()); }),
           "the samples are others"));
}

// The whole way at full scale, written down plainly: decode all, scale all, cut out the middle.
TEST(ImagenetTest, ATestImageIsTheMiddleOfTheScaledImage) {
  const TemporaryFolder folder;
  constexpr int64_t kSize = 28, kShort = 32;
  const std::array<double, 3> mean = {0.485, 0.456, 0.406}, std = {0.229, 0.224, 0.225};
  // 60 x 45 is decoded as it is; 400 x 300 at a quarter, so only nearly the same.
  for (const auto& [width, height, tolerance] :
       {std::tuple{60, 45, 1e-4}, {45, 60, 1e-4}, {400, 300, 0.12}}) {
    const auto file = jpeg_of_waves(width, height);
    folder.write("a.jpg", as_text(file));
    auto loader =
        load_imagenet_from_file(folder.write("l.txt", "a.jpg 4\n"),
                                {.phase = Phase::kTest, .image_size = kSize, .short_side = kShort});
    const auto iterator = loader.begin();
    const Batch& batch = *iterator;
    ASSERT_EQ(batch.data.sizes(), (std::vector<int64_t>{1, 3, kSize, kSize}));
    EXPECT_EQ(batch.target.item<int64_t>(), 4);

    JpegDecoder decoder;
    decoder.open(file);
    const auto area = decoder.decode({.width = width, .height = height});
    auto bytes = torch::empty({height, width, 4}, torch::kUInt8);
    for (int64_t y = 0; y < height; ++y)
      std::copy_n(area.pixels + y * area.stride, 4 * width, bytes[y].data_ptr<uint8_t>());
    const auto image = bytes.narrow(2, 0, 3).permute({2, 0, 1}).to(torch::kFloat64) / 255;
    const int64_t shortest = std::min(width, height);
    const int64_t w = width * kShort / shortest, h = height * kShort / shortest;
    const auto scaled = at::_upsample_bilinear2d_aa(image.unsqueeze(0), {h, w}, false);
    const auto middle = scaled.narrow(2, std::lrint((h - kSize) / 2.0), kSize)
                            .narrow(3, std::lrint((w - kSize) / 2.0), kSize);
    const auto as_column = [](const std::array<double, 3>& v) {
      return torch::tensor({v[0], v[1], v[2]}, torch::kFloat64).view({1, 3, 1, 1});
    };
    const auto expected = (middle - as_column(mean)) / as_column(std);
    EXPECT_LT((batch.data - expected).abs().max().item<double>(), tolerance)
        << width << " x " << height;
  }
}

// Red rises from left to right and green from top to bottom, so that a crop tells where it is from.
TEST(ImagenetTest, TrainingCropsAreRandomPartsHalfOfThemFlipped) {
  const TemporaryFolder folder;
  constexpr int64_t kSide = 256, kCount = 200, kSize = 32;
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < kSide * kSide; ++i)
    pixels.insert(pixels.end(),
                  {static_cast<uint8_t>(i % kSide), static_cast<uint8_t>(i / kSide), 128});
  folder.write("a.jpg", as_text(encode_jpeg(pixels, {kSide, kSide}, 3,
                                            {.quality = 98, .halve_colours = false})));
  std::string text;
  for (int64_t i = 0; i < kCount; ++i) text += "a.jpg 0\n";
  auto loader = load_imagenet_from_file(
      folder.write("l.txt", text),
      {.batch_size = kCount, .image_size = kSize, .mean = {0, 0, 0}, .std = {1, 1, 1}});
  const auto images = all_of(loader)[0].data * 255;
  int64_t flipped = 0;
  double least = 1, most = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    // Between the first and the last centre lie kSize - 1 of kSize steps.
    const auto spread = [&](int64_t channel, int64_t dim) {
      const auto line = images[i][channel].mean(1 - dim);
      return (line[kSize - 1] - line[0]).item<double>() * kSize / (kSize - 1);
    };
    const double width = spread(0, 1), height = spread(1, 0);
    flipped += width < 0 ? 1 : 0;
    const double share = std::abs(width) * height / (kSide * kSide);
    EXPECT_GT(height, 0);
    EXPECT_GT(share, 0.07);
    EXPECT_LT(std::abs(std::log(std::abs(width) / height)), std::log(4.0 / 3) + 0.05);
    least = std::min(least, share);
    most = std::max(most, share);
  }
  EXPECT_NEAR(flipped, kCount / 2, 25);
  EXPECT_LT(least, 0.15);
  EXPECT_GT(most, 0.85);
}

// A crop that is decoded at a half or a quarter looks like the one that is decoded in full.
TEST(ImagenetTest, ScaledDecodingChangesLittle) {
  const TemporaryFolder folder;
  const auto file = jpeg_of_waves(700, 560);
  folder.write("a.jpg", as_text(file));
  const auto list = folder.write("l.txt", "a.jpg 0\n");
  for (const int64_t size : {24, 60, 200}) {
    auto loader = load_imagenet_from_file(
        list,
        {.image_size = size, .min_area = 1, .flip = false, .mean = {0, 0, 0}, .std = {1, 1, 1}});
    const auto got = all_of(loader)[0].data[0];
    JpegDecoder decoder;
    decoder.open(file);
    const auto area = decoder.decode({.width = 700, .height = 560});
    auto expected = torch::empty({size, size, 3});
    ImageResize({.size = size})
        .run(area, {.width = 700, .height = 560}, expected.data_ptr<float>());
    EXPECT_LT((got - expected.permute({2, 0, 1})).abs().max().item<double>(), 0.03) << size;
  }
}

TEST(ImagenetTest, LaysImagesOutAsAsked) {
  const Pictures pictures;
  for (const bool channels_last : {true, false}) {
    auto loader =
        pictures.load({.batch_size = 4, .image_size = 16, .channels_last = channels_last});
    const auto batch = all_of(loader)[0];
    EXPECT_EQ(batch.data.is_contiguous(torch::MemoryFormat::ChannelsLast), channels_last);
    EXPECT_EQ(batch.data.is_contiguous(), !channels_last);
  }
  const auto image_with = [&](bool channels_last) {
    auto loader =
        pictures.load({.batch_size = 4, .image_size = 16, .channels_last = channels_last});
    return all_of(loader)[0].data;
  };
  EXPECT_TRUE(torch::equal(image_with(true), image_with(false)));
}

// Image 3 is cut short, 5 is text, 11 is missing.
class BrokenPictures : public Pictures {
 public:
  BrokenPictures() {
    auto bytes = jpeg_of_waves(100, 80);
    bytes.resize(bytes.size() / 8);
    write("3.jpg", as_text(bytes));
    write("5.jpg", "hello");
    std::filesystem::remove(path() / "11.jpg");
  }
};

TEST(ImagenetTest, BrokenImagesAreNamedAndLeftOut) {
  const BrokenPictures broken;
  const Pictures whole;
  const ImagenetOptions options{.batch_size = 6, .image_size = 16, .max_broken_ratio = 0.2};
  auto loader = broken.load(options);
  auto complete = whole.load(options);
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  const auto got = all_of(loader);
  all_of(loader);  // names are said once
  const auto said =
      ::testing::internal::GetCapturedStderr() + ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(says(said, "3.jpg is left out: Premature end of JPEG file",
                   "5.jpg is left out: Not a JPEG file", "11.jpg is left out: No such file"));
  EXPECT_EQ(said.find("5.jpg is left"), said.rfind("5.jpg is left"));
  const auto expected = all_of(complete);
  ASSERT_EQ(got.size(), expected.size()) << "the number of updates must not change";
  int64_t images = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    std::vector<int64_t> good;
    for (int64_t k = 0; k < expected[i].size(); ++k) {
      const auto label = expected[i].target[k].item<int64_t>();
      if (label != 3 && label != 5 && label != 11) good.push_back(k);
    }
    const auto keep = torch::tensor(good);
    EXPECT_TRUE(same(got[i], {expected[i].data.index_select(0, keep),
                              expected[i].target.index_select(0, keep)}));
    images += got[i].size();
  }
  EXPECT_EQ(images, kImages - 3);
  EXPECT_EQ(dynamic_cast<const ImageFiles&>(loader.dataset()).broken(), 3);
}

TEST(ImagenetTest, BrokenImagesKeepRanksInStep) {
  const BrokenPictures pictures;
  const auto labels_of = [&](int64_t rank, int64_t ranks, int64_t threads) {
    auto loader = pictures.load({.batch_size = 6 / ranks,
                                 .image_size = 16,
                                 .rank = rank,
                                 .world_size = ranks,
                                 .threads = threads,
                                 .max_broken_ratio = 0.2});
    std::vector<std::vector<int64_t>> labels;
    for (const Batch& batch : loader) {
      const auto* begin = batch.target.const_data_ptr<int64_t>();
      labels.emplace_back(begin, begin + batch.size());
    }
    return labels;
  };
  const auto whole = labels_of(0, 1, 1);
  for (const int64_t ranks : {2, 3, 6}) {
    std::vector<std::vector<int64_t>> together(whole.size());
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto part = labels_of(rank, ranks, 1 + rank % 2);
      ASSERT_EQ(part.size(), whole.size());
      for (size_t i = 0; i < part.size(); ++i)
        together[i].insert(together[i].end(), part[i].begin(), part[i].end());
    }
    EXPECT_EQ(together, whole) << ranks << " ranks";
  }
}

TEST(ImagenetTest, TooManyBrokenImagesAreAnErrorWithTheirNames) {
  const BrokenPictures pictures;
  for (const int64_t prefetch : {0, 2}) {
    auto loader = pictures.load({.batch_size = 4,
                                 .shuffle = false,
                                 .image_size = 16,
                                 .prefetch = prefetch,
                                 .max_broken_ratio = 0.1});
    EXPECT_TRUE(says(error_message_of([&] { all_of(loader); }),
                     "broken: 3 of 23 images, more than max_broken_ratio 0.1 allows",
                     "\n  - " + (pictures.path() / "3.jpg").string() + "\n  - ", "5.jpg\n  - ",
                     "11.jpg\n", "take them off the list, or raise max_broken_ratio"));
    EXPECT_EQ(loader.state().next_update, 2) << "what came before is handed out";
  }
  auto strict = pictures.load({.batch_size = 4, .shuffle = false, .image_size = 16});
  EXPECT_TRUE(says(error_message_of([&] { all_of(strict); }), "broken: 1 of 23 images"));
}

TEST(ImagenetTest, ReportsAllBadOptionsAtOnce) {
  const Pictures pictures(3);
  const auto text = error_message_of([&] {
    pictures.load({.image_size = 0,
                   .min_area = 0,
                   .short_side = -1,
                   .std = {1, 0, 1},
                   .threads = -1,
                   .max_broken_ratio = 2});
  });
  EXPECT_TRUE(says(text, "image_size is 0", "min_area is 0", "short_side -1 is below", "std is 0",
                   "threads is -1", "max_broken_ratio is 2"));
  EXPECT_TRUE(
      says(error_message_of([&] { pictures.load({.num_classes = 0}); }), "num_classes is 0"));
  EXPECT_TRUE(says(error_message_of([&] { pictures.load({.num_classes = 2}); }),
                   "list.txt:3: label 2 is outside 0..1"));
  EXPECT_TRUE(says(error_message_of([&] { pictures.load({.batch_size = 0}); }), "batch_size is 0"));
}

TEST(SyntheticImagesTest, CanBeTold) {
  const TemporaryFolder folder;
  const SyntheticImagesOptions options{.classes = 4, .per_class = 6, .width = 64, .height = 48};
  write_synthetic_images(folder.path() / "train", options);
  auto other = options;
  other.seed = 1;
  write_synthetic_images(folder.path() / "val", other);
  const auto load = [&](const char* name) {
    auto loader = load_imagenet_from_file(
        folder.path() / name,
        {.batch_size = 24, .phase = Phase::kTest, .image_size = 16, .num_classes = 4});
    return all_of(loader)[0];
  };
  const auto train = load("train"), listed = load("train.txt"), val = load("val");
  EXPECT_TRUE(same(train, listed)) << "the list and the folders are the same data";
  ASSERT_EQ(train.size(), 24);
  EXPECT_FALSE(torch::equal(train.data, val.data));
  // Each image of the one is nearest to its class's mean in the other.
  const auto means = train.data.flatten(1).view({4, 6, -1}).mean(1);
  const auto nearest = torch::cdist(val.data.flatten(1), means).argmin(1);
  EXPECT_TRUE(torch::equal(nearest, val.target));
}

}  // namespace
}  // namespace fleet
