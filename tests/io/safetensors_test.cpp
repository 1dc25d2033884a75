// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/safetensors.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/split_mix.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

std::string file_of(const std::string& header, const std::string& data, int64_t length = -1) {
  const uint64_t n = length < 0 ? header.size() : static_cast<uint64_t>(length);
  return std::string(reinterpret_cast<const char*>(&n), sizeof(n)) + header + data;
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class SafetensorsTest : public ::testing::Test {
 protected:
  // What the reader says to a file of these bytes; every refusal must name the file.
  std::string refusal(const std::string& bytes) {
    const auto path = folder_.write("bad.safetensors", bytes);
    const auto text = error_message_of([&] { SafetensorsFile file(path); });
    EXPECT_TRUE(says(text, path.string()));
    return text;
  }
  // To a header about one tensor "a", over `bytes` zeros.
  std::string refusal_of(const std::string& entry, size_t bytes = 4) {
    return refusal(file_of(R"({"a":)" + entry + "}", std::string(bytes, '\0')));
  }

  std::filesystem::path path(const char* name) { return folder_.path() / name; }

  TemporaryFolder folder_;
};

std::vector<NamedTensor> one_of_each_type() {
  const auto x = torch::arange(-3, 3, torch::kFloat).reshape({2, 3});
  std::vector<NamedTensor> tensors;
  for (const auto type :
       {torch::kBool, torch::kByte, torch::kChar, torch::kShort, torch::kHalf, torch::kBFloat16,
        torch::kInt, torch::kFloat, torch::kDouble, torch::kLong}) {
    tensors.push_back({c10::toString(type), x.abs().to(type)});
  }
  return tensors;
}

TEST_F(SafetensorsTest, GivesBackEveryType) {
  auto tensors = one_of_each_type();
  tensors.push_back({"scalar", torch::tensor(1.5)});
  tensors.push_back({"none", torch::empty({3, 0, 2})});
  tensors.push_back({"turned", torch::arange(6).reshape({2, 3}).t()});
  tensors.push_back({"\"quoted\"\n/caf\u00e9", torch::arange(5)});
  write_safetensors(path("a"), tensors, {{"format", "pt"}, {"note", "two\nlines"}});
  const SafetensorsFile file(path("a"));
  EXPECT_EQ(file.entries().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("note"), "two\nlines");
  for (const auto& [name, tensor] : tensors) {
    const auto& entry = file.at(name);
    EXPECT_EQ(entry.dtype, tensor.scalar_type());
    EXPECT_EQ(entry.begin % static_cast<int64_t>(tensor.element_size()), 0) << name;
    EXPECT_TRUE(torch::equal(file.read(entry), tensor)) << name;
  }
}

// Bytes from the reference library, safetensors 0.8.0 with torch 2.15.0:
//   safetensors.torch.save({"w": torch.tensor([1.0, -2.0]), "i": torch.tensor([7]),
//     "h": torch.tensor([[0.5]], dtype=torch.float16), "b": torch.tensor([True, False])},
//     {"format": "pt"})
TEST_F(SafetensorsTest, WritesTheBytesOfTheReferenceLibrary) {
  write_safetensors(path("a"),
                    {{"w", torch::tensor({1.0F, -2.0F})},
                     {"i", torch::tensor({int64_t{7}})},
                     {"h", torch::tensor({{0.5F}}).to(torch::kHalf)},
                     {"b", torch::tensor({1, 0}).to(torch::kBool)}},
                    {{"format", "pt"}});
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},"h":{"dtype":"F16","shape":[1,1],"data_offsets":[16,18]},"b":{"dtype":"BOOL","shape":[2],"data_offsets":[18,20]}}    )";
  const std::string data(
      "\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x38\x01\x00", 20);
  EXPECT_EQ(contents(path("a")), file_of(header, data));
}

TEST_F(SafetensorsTest, ReadsIntoATensorOfAnotherTypeAndLayout) {
  write_safetensors(path("a"), {{"x", torch::arange(6, torch::kFloat).reshape({2, 3})}});
  const SafetensorsFile file(path("a"));
  auto turned = torch::empty({3, 2}, torch::kDouble).t();
  file.read_into(file.at("x"), turned);
  EXPECT_EQ(turned[1][2].item<double>(), 5);
  EXPECT_TRUE(says(error_message_of([&] {
                     file.read_into(file.at("x"), torch::empty({3, 2}));
                   }),
                   "'x'", "shape of its target"));
  EXPECT_TRUE(says(error_message_of([&] { file.at("y"); }), "no tensor 'y'", "fleet inspect"));
}

TEST_F(SafetensorsTest, ReplacesAFileAtomically) {
  write_safetensors(path("a"), {{"x", torch::arange(2)}});
  const auto before = contents(path("a"));
  EXPECT_THROW(write_safetensors(path("a"), {SafetensorsItem{.name = "x",
                                                             .dtype = torch::kLong,
                                                             .shape = {2},
                                                             .make = []() -> torch::Tensor {
                                                               throw Error("test", "no");
                                                             }}}),
               Error);
  EXPECT_EQ(contents(path("a")), before);
  const std::filesystem::directory_iterator files(folder_.path());
  EXPECT_EQ(std::distance(files, {}), 1);  // nothing is left beside it
  write_safetensors(path("a"), std::vector<NamedTensor>{});
  EXPECT_TRUE(SafetensorsFile(path("a")).entries().empty());
}

TEST_F(SafetensorsTest, RefusesToWriteAnUnreadableFile) {
  const auto x = torch::arange(2);
  EXPECT_TRUE(
      says(error_message_of([&] {
             write_safetensors(
                 path("a"),
                 {{"x", x}, {"x", x}, {"__metadata__", x}, {"c", x.to(torch::kComplexFloat)}});
           }),
           "'x' occurs twice", "'__metadata__'", "'c' is ComplexFloat"));
  EXPECT_TRUE(says(error_message_of([&] {
                     write_safetensors(path("a"), {{"\xff", x}});
                   }),
                   "not UTF-8"));
  EXPECT_TRUE(says(error_message_of([&] {
                     write_safetensors(path("a"), {{"x", x.to(torch::kMeta)}});
                   }),
                   "'x' has no"));
  EXPECT_TRUE(says(error_message_of([&] {
                     write_safetensors(path("no/a"), {{"x", x}});
                   }),
                   "no/a", "No such file"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(SafetensorsTest, SaysWhyAFileCannotBeOpened) {
  EXPECT_TRUE(
      says(error_message_of([&] { SafetensorsFile file(path("absent")); }), "No such file"));
  EXPECT_TRUE(
      says(error_message_of([&] { SafetensorsFile file(folder_.path()); }), "not a regular file"));
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(
      says(error_message_of([&] { SafetensorsFile file(path("pipe")); }), "not a regular file"));
}

TEST_F(SafetensorsTest, RefusesAHeaderThatIsNone) {
  EXPECT_TRUE(says(refusal("1234567"), "no room for the length"));
  EXPECT_TRUE(says(refusal(file_of("{}", "", 100'000'001)), "above the format's 100 MB"));
  EXPECT_TRUE(says(refusal(file_of("{}", "", 50'000'000)), "a header of 50000000 bytes, 2 are"));
  EXPECT_TRUE(says(refusal(file_of("", "")), "does not begin with '{'"));
  EXPECT_TRUE(says(refusal(file_of(" {}", "")), "does not begin with '{'"));
  EXPECT_TRUE(says(refusal(file_of("{} x", "")), "not JSON"));
  EXPECT_TRUE(says(refusal(file_of(R"({"a":{"dtype")", "")), "not JSON", "'a'"));
  EXPECT_TRUE(says(refusal(file_of(std::string("{}\0\0", 4), "")), "a zero at byte 2"));
  EXPECT_TRUE(says(refusal(file_of("{\"\xff\":1}", "")), "not JSON"));
}

TEST_F(SafetensorsTest, RefusesAnEntryThatIsNone) {
  EXPECT_TRUE(says(refusal_of("[]"), "'a' is a list where an object must be"));
  EXPECT_TRUE(says(refusal_of("null"), "'a' is null"));
  EXPECT_TRUE(says(refusal_of("{}"), "'a' has no dtype"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F32","shape":[1]})"), "'a' has no data_offsets"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]})"),
                   "'a' is of type 'F8_E4M3'"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F32","dtype":"F32","shape":[1]})"), "'dtype' twice"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":"y"})"),
                   "'a' has a text at 'x'"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,4]})"), "a list"));
  EXPECT_TRUE(
      says(refusal_of(R"({"dtype":"F32","shape":[{}],"data_offsets":[0,4]})"), "an object"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), "negative"));
  EXPECT_TRUE(
      says(refusal_of(R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})"), "fraction"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})"), "1 data_off"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F32","shape":[1],"data_offsets":[0,2,4]})"),
                   "more than 2 numbers"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"),
                   "ends at 0, before its begin at 4"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
                   "'a' takes 8 bytes", "0 to 4 hold 4"));
  EXPECT_TRUE(says(refusal(file_of(R"({"__metadata__":{"k":1}})", "")), "a number at 'k'"));
  EXPECT_TRUE(
      says(refusal(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", "")), "'k' occurs twice"));
}

TEST_F(SafetensorsTest, RefusesGapsAndOverlaps) {
  const auto two = [](const char* a, const char* b, const char* second = "b") {
    return format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                  R"("{}":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                  a, second, b);
  };
  const std::string eight(8, '\0');
  EXPECT_EQ(error_message_of([&] {
              SafetensorsFile(folder_.write("good", file_of(two("[4,8]", "[0,4]"), eight)));
            }),
            "");
  EXPECT_TRUE(says(refusal(file_of(two("[0,4]", "[2,6]"), eight)),
                   "'b' begins at byte 2 of the data, inside 'a', which ends at 4"));
  EXPECT_TRUE(says(refusal(file_of(two("[0,4]", "[0,4]"), eight)), "inside 'a'"));
  EXPECT_TRUE(says(refusal(file_of(two("[0,4]", "[5,9]"), eight + "x")),
                   "bytes 4 to 5 of the data, before 'b', belong to no tensor"));
  EXPECT_TRUE(says(refusal(file_of(two("[0,4]", "[4,8]"), eight + "xyz")), "the last 3 bytes"));
  EXPECT_TRUE(says(refusal(file_of(two("[0,4]", "[4,8]"), "1234567")),
                   "truncated: 'b' ends at byte 8 of the data, 7 are there"));
  EXPECT_TRUE(says(refusal(file_of(two("[0,4]", "[4,8]", "a"), eight)), "'a' occurs twice"));
}

TEST_F(SafetensorsTest, RefusesABoolThatIsNeitherTrueNorFalse) {
  const auto file = folder_.write(
      "b", file_of(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\x01\x02"));
  const SafetensorsFile opened(file);
  EXPECT_TRUE(
      says(error_message_of([&] { opened.read(opened.at("a")); }), file.string(), "'a' has bytes"));
}

TEST_F(SafetensorsTest, NoticesThatAnOpenFileWasCut) {
  write_safetensors(path("a"), {{"x", torch::arange(1000)}});
  const SafetensorsFile file(path("a"));
  std::filesystem::resize_file(path("a"), 500);
  EXPECT_TRUE(
      says(error_message_of([&] { file.read(file.at("x")); }), "truncated since it was opened"));
}

// A reader that believed any of these would need more memory than there is, or a stack without end.
TEST_F(SafetensorsTest, DoesNotAllocateOnTheWordOfAHeader) {
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"U8","shape":[1000000000000],)"
                              R"("data_offsets":[0,1000000000000]})"),
                   "truncated: 'a' ends at byte 1000000000000 of the data, 4 are there"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F64","shape":[4294967296,4294967296],)"
                              R"("data_offsets":[0,0]})"),
                   "more bytes than can be counted"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"F64","shape":[0,4294967296,4294967296],)"
                              R"("data_offsets":[0,0]})"),
                   "more bytes than can be counted"));
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"U8","shape":[18446744073709551615],)"
                              R"("data_offsets":[0,0]})"),
                   "the number 18446744073709551615"));
  EXPECT_TRUE(
      says(refusal(file_of(R"({"a":{"shape":)" + std::string(1 << 20, '['), "")), "a list"));
  EXPECT_TRUE(says(refusal(file_of(R"({"a":)" + std::string(1 << 20, '['), "")), "a list"));
  std::string ones = "1";
  for (int i = 0; i < 100000; ++i) ones += ",1";
  EXPECT_TRUE(says(refusal_of(R"({"dtype":"U8","shape":[)" + ones + "]}"), "more than 64 numbers"));
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10);  // in KB
}

// Whatever a damaged file says, the answer is an Error, or tensors whose every byte is in the file.
TEST_F(SafetensorsTest, SurvivesDamage) {
  write_safetensors(path("good"), one_of_each_type(), {{"format", "pt"}});
  const auto good = contents(path("good"));
  SplitMix64 random({11});
  int refused = 0, read = 0;
  for (int i = 0; i < 4000; ++i) {
    auto bytes = good;
    if (i % 4 == 0) {
      bytes.resize(random.below(bytes.size()));
    } else {
      for (int flips = 1 << (i % 4 - 1); flips > 0; --flips) {
        bytes[random.below(bytes.size())] ^= static_cast<char>(1 << random.below(8));
      }
    }
    std::filesystem::remove(path("damaged"));  // a file cut to nothing would be synced when closed
    try {
      const SafetensorsFile file(folder_.write("damaged", bytes));
      int64_t total = 0;
      for (const auto& entry : file.entries()) {
        ASSERT_LE(entry.begin + entry.bytes, std::ssize(bytes));
        total += static_cast<int64_t>(file.read(entry).nbytes());
      }
      ASSERT_LT(total, std::ssize(bytes));
      ++read;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
  EXPECT_GT(read, 100);  // flips in the data alone are not damage that the format could know
}

}  // namespace
}  // namespace fleet
