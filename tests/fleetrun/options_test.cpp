#include "tools/fleetrun/options.h"

#include <gtest/gtest.h>

#include "fleet/core/error.h"

namespace fleet::launch {
namespace {

std::string refusal(const std::vector<std::string>& words) {
  try {
    parse_options(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
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
  EXPECT_FALSE(options.help);
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

TEST(OptionsTest, UnknownFlagSuggestsTheNearest) {
  EXPECT_EQ(refusal({"--nproc_per_nod", "2", "prog"}),
            "[fleetrun] unknown flag --nproc_per_nod (did you mean 'nproc_per_node'?)\n"
            "  fix: flags of your program go behind its name; fleetrun --help lists all");
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
  EXPECT_NE(refusal({"--nproc_per_node", "0", "p"}).find("from 1 to 65536, not '0'"),
            std::string::npos);
  EXPECT_NE(refusal({"--nproc_per_node", "2x", "p"}).find("not '2x'"), std::string::npos);
  EXPECT_NE(refusal({"--grace_s=nan", "p"}).find("not 'nan'"), std::string::npos);
  EXPECT_NE(refusal({"--master=host", "p"}).find("takes host:port, not 'host'"), std::string::npos);
  EXPECT_NE(refusal({"--ips=a,,b", "p"}).find("single commas"), std::string::npos);
  EXPECT_NE(refusal({"--ips=a,a", "p"}).find("names one twice"), std::string::npos);
  EXPECT_NE(refusal({"--log_dir"}).find("needs a value"), std::string::npos);
  EXPECT_NE(refusal({"--log_dir=a", "--log-dir=b", "p"}).find("given twice"), std::string::npos);
  EXPECT_NE(refusal({"-n", "2", "p"}).find("two dashes"), std::string::npos);
}

TEST(OptionsTest, HelpNamesEveryFlagWithItsDefault) {
  const auto help = help_text();
  for (const auto& [name, value] : shown_options(parse_options({"prog"}))) {
    if (name.starts_with("training_script")) continue;
    const auto at = help.find("--" + name + " ");
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_NE(help.substr(at, help.find('\n', at) - at).find("(default: "), std::string::npos);
  }
}

}  // namespace
}  // namespace fleet::launch
