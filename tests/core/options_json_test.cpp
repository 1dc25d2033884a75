// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/options/options_json.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/support/error_of.h"

namespace fleet {
namespace {

using testing::error_message_of;

struct Inner {
  float ratio = 0.8f;
  std::vector<int64_t> shape = {};

  bool operator==(const Inner&) const = default;
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
  int steps = 1;
  double rate = 0.1;
  std::string text = {};
  std::vector<std::string> names = {"x"};

  bool operator==(const Outer&) const = default;
};
const FieldList& fields_of(const Outer*) {
  static const FieldList list{.area = "outer",
                              .fields =
                                  {
                                      field<&Outer::on>("on", "a switch"),
                                      field<&Outer::inner>("inner", ""),
                                      field<&Outer::steps>("steps", "a number").at_least(1),
                                      field<&Outer::rate>("rate", "a number"),
                                      field<&Outer::text>("text", "a text"),
                                      field<&Outer::names>("names", "a list"),
                                  },
                              .absent = {{"ghost", "lives elsewhere"}}};
  return list;
}

std::string refusal(const std::string& text) {
  Outer outer;
  const auto error = error_message_of([&] { read_json(outer, text, "file.json"); });
  if (!error.empty()) {
    EXPECT_EQ(outer, Outer()) << "an error must leave the options as they were";
  }
  return error;
}

std::string path_of(const std::string& name) {
  return (std::filesystem::path(::testing::TempDir()) / name).string();
}

TEST(OptionsJsonTest, SetsWhatIsNamedAndLeavesTheRest) {
  Outer outer{.steps = 7};
  read_json(outer, R"({"on": true, "inner": {"ratio": 0.5}, "names": ["a", "b"]} // done)");
  EXPECT_EQ(outer, (Outer{.on = true, .inner = {.ratio = 0.5f}, .steps = 7, .names = {"a", "b"}}));
}

TEST(OptionsJsonTest, ListsReplace) {
  Outer outer;
  read_json(outer, R"({"names": ["a"]})");
  read_json(outer, R"({"names": ["b"]})");
  EXPECT_EQ(outer.names, std::vector<std::string>{"b"});
}

TEST(OptionsJsonTest, AllProblemsComeInOneError) {
  EXPECT_EQ(refusal(R"({
    "on": 1, "stepz": 2, "steps": 0, "inner": {"ratio": "high", "shap": []}, "names": ["a", 3],
    "rate": null, "ghost": 1, "text": false
  })"),
            "[outer] file.json cannot be used as it is:\n"
            "  - on: expected true or false, got 1\n"
            "  - unknown key 'stepz' (did you mean 'steps'?)\n"
            "  - steps: 0 is out of range: it must be at least 1\n"
            "  - inner.ratio: expected a number, got \"high\"\n"
            "  - unknown key 'inner.shap' (did you mean 'shape'?)\n"
            "  - names: expected a list of texts, got [\"a\",3]\n"
            "  - rate: expected a number, got null\n"
            "  - ghost: lives elsewhere\n"
            "  - text: expected a text, got false");
}

TEST(OptionsJsonTest, WholeNumbersAreNotRounded) {
  EXPECT_NE(refusal(R"({"steps": 2.5})").find("expected a whole number below 2^31, got 2.5"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"steps": 4294967297})")
                .find("steps: 4294967297 is too large: the most is 2147483647"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"steps": 100000000000000000000})")
                .find("steps: 100000000000000000000 is too large: the most is 2147483647"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"inner": {"ratio": 1e39}})").find("inner.ratio: 1e+39 is out of range"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"inner": {"shape": [18446744073709551615]}})").find("a list of whole"),
            std::string::npos);
}

TEST(OptionsJsonTest, NestedConfigsMustBeAnObject) {
  EXPECT_EQ(refusal(R"({"inner": true})"),
            "[outer] file.json cannot be used as it is:\n"
            "  - inner: expected an object {...}, got true");
}

TEST(OptionsJsonTest, AKeyGivenTwiceIsAnError) {
  EXPECT_NE(refusal(R"({"on": true, "on": false})").find("key 'on' is given twice"),
            std::string::npos);
  EXPECT_EQ(refusal(R"({"inner": {"ratio": 0.5}, "rate": 1})"), "");
}

TEST(OptionsJsonTest, SyntaxErrorsSayLineAndColumn) {
  const std::string text = refusal("{\n  \"on\": tru,\n}");
  EXPECT_TRUE(text.starts_with("[outer] file.json is not JSON, at 2:12: syntax error")) << text;
  EXPECT_NE(refusal(R"({"on": True})").find("fix: JSON writes true, false and null"),
            std::string::npos);
  EXPECT_NE(refusal("").find("at 1:1: "), std::string::npos) << refusal("");
  EXPECT_EQ(refusal("[1]"), "[outer] file.json must hold one object {...}, got [1]");
  EXPECT_NE(refusal(R"({"rate": 1e999})").find("number overflow"), std::string::npos)
      << refusal(R"({"rate": 1e999})");
}

TEST(OptionsJsonTest, MissingFileSaysWhichAndWhy) {
  Outer outer;
  EXPECT_EQ(error_message_of([&] { load_json(outer, "no/such.json"); }),
            "[outer] cannot read 'no/such.json': No such file or directory\n"
            "  fix: check the path and its permissions");
  EXPECT_NE(error_message_of([&] { load_json(outer, ::testing::TempDir()); }).find("cannot read"),
            std::string::npos);
}

// Memory would be read full.
TEST(OptionsJsonTest, FileWithoutEndIsRefused) {
  Outer outer;
  EXPECT_NE(error_message_of([&] {
              load_json(outer, "/dev/zero");
            }).find("'/dev/zero' has more than 16 MB and is no file of options"),
            std::string::npos);
}

TEST(OptionsJsonTest, WritesOnlyDifferencesAndShortFloats) {
  EXPECT_EQ(write_json(Outer(), Outer()), "{}\n");
  const Outer outer{.inner = {.ratio = 0.1f}, .names = {}};
  EXPECT_EQ(write_json(outer, Outer()),
            "{\n  \"inner\": {\n    \"ratio\": 0.1\n  },\n  \"names\": []\n}\n");
}

TEST(OptionsJsonTest, WhatJsonCannotSayIsRefused) {
  EXPECT_THROW(write_json(Outer{.rate = std::nan("")}, Outer()), Error);
  EXPECT_THROW(write_json(Outer{.text = "\xff"}, Outer()), Error);
}

TEST(OptionsJsonTest, FileLoadsBackWhatWasWritten) {
  const std::string file = path_of("options_json_test.json");
  const Outer outer{.on = true, .rate = 1e-300, .text = "\"\n\u00e9", .names = {"a", "b"}};
  std::ofstream(file) << write_json(outer, Outer());
  Outer back;
  load_json(back, file);
  EXPECT_EQ(back, outer);
  std::remove(file.c_str());
}

// Printing such a value would take a stack as deep.
TEST(OptionsJsonTest, RefusesATextThatIsNestedWithoutEnd) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const auto expected = "[outer] file.json is nested more than 100 deep, which no options are";
  EXPECT_EQ(refusal("{\"steps\": " + deep + "}"), expected);
  EXPECT_EQ(refusal(deep), expected);
}

}  // namespace
}  // namespace fleet
