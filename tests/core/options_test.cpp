// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/options/options.h"

#include <limits>

#include <gtest/gtest.h>

#include "fleet/core/text/byte_size.h"

namespace fleet {
namespace {

struct Inner {
  float ratio = 0.8f;
  std::vector<int64_t> shape = {};
};
const FieldList& fields_of(const Inner*) {
  static const FieldList list{.area = "inner",
                              .fields = {
                                  field<&Inner::ratio>("ratio", "a share").above(0).below(1),
                                  field<&Inner::shape>("shape", "sizes").at_least(1),
                              }};
  return list;
}

struct Outer {
  bool on = false;
  Inner inner = {};
  std::string kind = "a";
  int64_t count = 1;
  std::vector<std::string> names = {};
};
const FieldList& fields_of(const Outer*) {
  static const FieldList list{.area = "outer",
                              .fields = {
                                  field<&Outer::on>("on", "a switch"),
                                  field<&Outer::inner>("inner", ""),
                                  field<&Outer::kind>("kind", "a word").one_of({"a", "b"}),
                                  field<&Outer::count>("count", "a number").at_least(1),
                                  field<&Outer::names>("names", "a list"),
                              }};
  return list;
}

TEST(OptionsTest, LeavesNameNestedFieldsByTheirPath) {
  const Outer outer;
  std::vector<std::string> paths;
  for (const auto& leaf : leaves(OptionsView(outer))) paths.push_back(leaf.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"on", "inner.ratio", "inner.shape", "kind", "count",
                                             "names"}));
}

TEST(OptionsTest, LeavesReachIntoTheObjectItself) {
  Outer outer;
  const auto all = leaves(OptionsRef(outer));
  all[1].field->set(all[1].owner, 0.5f);
  EXPECT_EQ(outer.inner.ratio, 0.5f);
  outer.inner.ratio = 0.25f;
  EXPECT_EQ(all[1].field->get(all[1].owner), FieldValue(0.25f));
}

TEST(OptionsTest, EveryValueOutOfItsLimitsIsReported) {
  Outer outer;
  EXPECT_TRUE(out_of_limits(outer).empty());
  outer.inner.ratio = 1;
  outer.inner.shape = {3, 0};
  outer.kind = "c";
  outer.count = 0;
  outer.names = {"x", ""};
  EXPECT_EQ(out_of_limits(outer),
            (std::vector<std::string>{
                "inner.ratio: 1 is out of range: it must be above 0 and below 1",
                "inner.shape: 0 is out of range: it must be at least 1",
                "kind: 'c' is not known: it must be a or b",
                "count: 0 is out of range: it must be at least 1",
                "names: a name in the list is empty",
            }));
}

TEST(OptionsTest, NumbersThatAreNotFiniteAreOutOfEveryRange) {
  const Field field{.name = "free", .help = "has no limits"};
  EXPECT_EQ(problem_with(field, std::numeric_limits<double>::quiet_NaN()),
            "nan is not a finite number");
  EXPECT_EQ(problem_with(field, std::numeric_limits<float>::infinity()),
            "inf is not a finite number");
  EXPECT_EQ(problem_with(field, 1e300), "");
}

TEST(OptionsTest, ANumberBeyondItsTypeIsToldFromWhatIsNoNumber) {
  EXPECT_EQ(beyond_type(int64_t{}, "99999999999999999999"),
            "99999999999999999999 is too large: the most is 9223372036854775807");
  EXPECT_EQ(beyond_type(int64_t{}, "-99999999999999999999"),
            "-99999999999999999999 is too small: the least is -9223372036854775808");
  EXPECT_EQ(beyond_type(int{}, "3000000000"), "3000000000 is too large: the most is 2147483647");
  EXPECT_EQ(beyond_type(double{}, "1e999"),
            "1e999 is out of range: numbers are 0, or from 2.225e-308 to 1.798e+308 in size");
  EXPECT_EQ(beyond_type(float{}, "1e39"),
            "1e39 is out of range: numbers are 0, or from 1.175e-38 to 3.403e+38 in size");
  for (const char* text : {"12x", "many", "1.2.3", "", "7"}) {
    EXPECT_EQ(beyond_type(int64_t{}, text), "") << text;
    EXPECT_EQ(beyond_type(double{}, text), "") << text;
  }
}

TEST(OptionsTest, ValuesPrintAsAPersonWouldTypeThem) {
  EXPECT_EQ(to_text(true), "true");
  EXPECT_EQ(to_text(0.8f), "0.8");
  EXPECT_EQ(to_text(1e-9), "1e-09");
  EXPECT_EQ(to_text(std::vector<std::string>{"a", "b"}), "a,b");
  EXPECT_EQ(to_text(std::vector<int64_t>{2, -3}), "2,-3");
}

TEST(ByteSizeTest, ReadsThousandsAndPowersOfTwo) {
  EXPECT_EQ(byte_size("12GiB"), int64_t{12} << 30);
  EXPECT_EQ(byte_size("1.5 GB"), 1'500'000'000);
  EXPECT_EQ(byte_size("4096"), 4096);
  for (const auto* wrong : {"", "GiB", "12gigs", "-1GB", "1e30TB", "12GiB ", "nan"}) {
    EXPECT_EQ(byte_size(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace fleet
