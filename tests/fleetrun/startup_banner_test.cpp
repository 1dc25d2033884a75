// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/startup_banner.h"

#include <gtest/gtest.h>

namespace fleet::launch {
namespace {

TEST(StartupBannerTest, EnvironmentTableIsTheGuides) {
  EXPECT_EQ(
      environment_table({
          {"PADDLE_CURRENT_ENDPOINT", "127.0.0.1:17901"},
          {"PADDLE_TRAINERS_NUM", "2"},
          {"PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:17901,127.0.0.1:18846"},
          {"FLAGS_selected_gpus", "0"},
          {"PADDLE_TRAINER_ID", "0"},
      }),
      // clang-format off
"    +=======================================================================================+\n"
"    |                        Distributed Envs                      Value                    |\n"
"    +---------------------------------------------------------------------------------------+\n"
"    |                 PADDLE_CURRENT_ENDPOINT                 127.0.0.1:17901               |\n"
"    |                     PADDLE_TRAINERS_NUM                        2                      |\n"
"    |                PADDLE_TRAINER_ENDPOINTS         127.0.0.1:17901,127.0.0.1:18846       |\n"
"    |                     FLAGS_selected_gpus                        0                      |\n"
"    |                       PADDLE_TRAINER_ID                        0                      |\n"
"    +=======================================================================================+");
  // clang-format on
}

TEST(StartupBannerTest, LongValueKeepsItsEnd) {
  const std::string longest_whole(44, 'a');
  EXPECT_NE(environment_table({{"KEY", longest_whole}}).find("  " + longest_whole + " |"),
            std::string::npos);
  const auto text = environment_table({{"KEY", "dropped" + std::string(41, 'z')}});
  EXPECT_NE(text.find("KEY  ... " + std::string(41, 'z') + "|"), std::string::npos) << text;
}

TEST(StartupBannerTest, LongNameWidensTheTable) {
  const std::string name(50, 'N');
  const auto text = environment_table({{name, "v"}});
  EXPECT_EQ(text.find("    |" + name + "  "), text.find("    |" + name));
  EXPECT_EQ(text.substr(0, text.find('\n')), "    +" + std::string(97, '=') + "+");
}

TEST(StartupBannerTest, ConfigurationBlockIsSortedAndSaysNone) {
  const auto options = parse_options({"--gpus=0,1", "./train", "--lr", "0.1"});
  EXPECT_EQ(configuration_block(options),
            "-----------  Configuration Arguments -----------\n"
            "elastic: false\n"
            "gpus: 0,1\n"
            "grace_s: 5\n"
            "ips: 127.0.0.1\n"
            "job_key_file: None\n"
            "join_timeout_s: 600\n"
            "log_dir: log\n"
            "log_keep: 5\n"
            "master: None\n"
            "master_port: 29500\n"
            "max_restarts: 0\n"
            "min_ranks: 1\n"
            "nnodes: None\n"
            "no_job_key: false\n"
            "node_rank: None\n"
            "nproc_per_node: None\n"
            "peer_timeout_s: None\n"
            "save_grace_s: 120\n"
            "training_script: ./train\n"
            "training_script_args: ['--lr', '0.1']\n"
            "------------------------------------------------");
}

}  // namespace
}  // namespace fleet::launch
