// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/options.h"

#include <map>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/support/error_of.h"

namespace fleet::launch {
namespace {

using testing::error_message_of;

std::string refusal(const std::vector<std::string>& words) {
  return error_message_of<UsageError>([&] { parse_options(words); });
}

TEST(OptionsTest, DashAndUnderscoreAndEqualsAreTheSame) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--nproc_per_node", "3", "prog"},
        {"--nproc-per-node", "3", "prog"},
        {"--nproc-per-node=3", "prog"},
        {"--nproc_per_node=3", "--", "prog"}})
    EXPECT_EQ(parse_options(words).local_ranks(), 3);
}

TEST(OptionsTest, EverythingBehindTheProgramIsTheProgramsOwn) {
  const auto options = parse_options({"prog", "--nproc_per_node", "9", "--help", "--", "x"});
  EXPECT_EQ(options.local_ranks(), 1);
  EXPECT_EQ(options.program_args,
            (std::vector<std::string>{"--nproc_per_node", "9", "--help", "--", "x"}));
}

TEST(OptionsTest, OneRankPerGpu) {
  EXPECT_EQ(parse_options({"--gpus", "0,2,5", "prog"}).local_ranks(), 3);
  EXPECT_NE(refusal({"--gpus=0,1", "--nproc_per_node=3", "prog"})
                .find("--nproc_per_node 3 and --gpus 0,1 do not agree"),
            std::string::npos);
}

TEST(OptionsTest, GpusAreNumbers) {
  for (const auto* word : {"a", "0,b", "-1", "0.5"}) {
    EXPECT_NE(refusal({std::string("--gpus=") + word, "prog"}).find("--gpus takes numbers, not '"),
              std::string::npos)
        << word;
  }
}

TEST(OptionsTest, UnknownFlagSuggestsTheNearest) {
  EXPECT_EQ(refusal({"--nproc_per_nod", "2", "prog"}),
            "[command line] fleetrun cannot start:\n"
            "  - unknown flag --nproc_per_nod (did you mean '--nproc_per_node'?)\n"
            "  fix: flags of your program go behind its name; fleetrun --help lists every flag");
}

TEST(OptionsTest, ContradictionsComeAllAtOnce) {
  const auto text = refusal({"--ips", "10.0.0.1,10.0.0.2", "--nnodes", "2", "--node_rank", "2"});
  EXPECT_NE(text.find("--ips names the nodes by address, --nnodes, --node_rank and --master by "
                      "number: give one of the two"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("--nnodes 2 needs --node_rank and --master host:port"), std::string::npos);
  EXPECT_NE(text.find("--node_rank 2 is outside 0..1 of --nnodes 2"), std::string::npos);
  EXPECT_NE(text.find("no program to start"), std::string::npos);
}

TEST(OptionsTest, WrongValuesAreNamed) {
  EXPECT_NE(
      refusal({"--nproc_per_node", "0", "p"})
          .find("--nproc_per_node: 0 is out of range: it must be at least 1 and at most 65536"),
      std::string::npos);
  EXPECT_NE(refusal({"--nproc_per_node", "2x", "p"}).find("got '2x'"), std::string::npos);
  EXPECT_NE(refusal({"--grace_s=nan", "p"}).find("--grace_s: nan is not a finite number"),
            std::string::npos);
  for (const std::string wrong : {"host", ":1", "host:", "host:0", "host:65536", "host:1x"})
    EXPECT_NE(refusal({"--nnodes=1", "--master=" + wrong, "p"})
                  .find("--master takes host:port, not '" + wrong + "'"),
              std::string::npos)
        << wrong;
  EXPECT_NE(refusal({"--ips=a,,b", "p"}).find("a name in the list is empty"), std::string::npos);
  EXPECT_NE(refusal({"--ips=", "p"}).find("--ips is empty"), std::string::npos);
  EXPECT_NE(refusal({"--ips=a,a", "p"}).find("names one twice"), std::string::npos);
  EXPECT_NE(refusal({"--ips=gpu[1-2],gpu2", "p"}).find("names one twice"), std::string::npos);
  EXPECT_NE(refusal({"--ips=gpu[01-", "p"}).find("the list 'gpu[01-' cannot be read"),
            std::string::npos);
  EXPECT_NE(refusal({"--log_dir"}).find("needs a value"), std::string::npos);
  EXPECT_NE(refusal({"-n", "2", "p"}).find("two dashes"), std::string::npos);
}

TEST(OptionsTest, NodesMayBeListedAsSlurmWritesThem) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(parse_options({"--ips=gpu[01-02,07]-ib,login", "p"}).ips,
            (Names{"gpu01-ib", "gpu02-ib", "gpu07-ib", "login"}));
  EXPECT_EQ(parse_options({"--ips=fe80::1,[::2]", "p"}).ips, (Names{"fe80::1", "[::2]"}));
}

TEST(OptionsTest, HelpNamesEveryFlagWithItsDefault) {
  const auto help = error_message_of<HelpRequested>([] { parse_options({"--help"}); });
  for (const auto& [name, value] : shown_options(parse_options({"prog"}))) {
    if (name.starts_with("training_script")) continue;
    const auto at = help.find("--" + name + " ");
    ASSERT_NE(at, std::string::npos) << name;
    const auto line = help.substr(at, help.find('\n', at) - at);
    const std::map<std::string, std::string> words = {{"None", "none"}, {"false", "off"}};
    const auto word = words.contains(value) ? words.at(value) : value;
    EXPECT_TRUE(line.ends_with("default " + word + ")")) << line;
  }
}

}  // namespace
}  // namespace fleet::launch
