#include "fleet/comm/role_maker.h"

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/support/error_of.h"

namespace fleet {
namespace {

using testing::error_of;
using Variables = std::map<std::string, std::string>;

RoleMaker made_from(const Variables& variables) {
  return RoleMaker::from_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

std::string refusal(const Variables& variables) {
  return error_of([&] { made_from(variables); });
}

TEST(RoleMakerTest, IsOneProcessWithoutALauncher) {
  const auto role = made_from({{"PATH", "/bin"}});
  EXPECT_EQ(role.rank, 0);
  EXPECT_EQ(role.world_size, 1);
}

TEST(RoleMakerTest, TheGuidesRoleMakerHasNoParameterServers) {
  EXPECT_NO_THROW(PaddleCloudRoleMaker{.is_collective = true}.role());
  EXPECT_EQ(error_of([] { PaddleCloudRoleMaker{}.role(); }),
            "[comm] is_collective = false asks for parameter servers, and Fleet has none\n"
            "  fix: say {.is_collective = true}: the ranks train by collectives");
}

TEST(RoleMakerTest, ReadsTorchrun) {
  const auto role = made_from({{"RANK", "3"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "10.0.0.1"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(role.rank, 3);
  EXPECT_EQ(role.world_size, 4);
  EXPECT_EQ(role.local_rank, 1);
  EXPECT_EQ(role.local_world_size, 2);
  EXPECT_EQ(role.master_address, "10.0.0.1");
  EXPECT_EQ(role.master_port, 29500);
  EXPECT_TRUE(role.store_is_hosted);
  EXPECT_EQ(role.restart_count, 2);
}

TEST(RoleMakerTest, ReadsPaddle) {
  const auto role = made_from({{"PADDLE_TRAINER_ID", "1"},
                               {"PADDLE_TRAINERS_NUM", "2"},
                               {"PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:17901,127.0.0.1:18846"}});
  EXPECT_EQ(role.rank, 1);
  EXPECT_EQ(role.world_size, 2);
  EXPECT_EQ(role.master_address, "127.0.0.1");
  EXPECT_EQ(role.master_port, 17901);
  EXPECT_FALSE(role.store_is_hosted);
  EXPECT_EQ(role.endpoints.size(), 2u);
}

TEST(RoleMakerTest, ReadsASlurmStepAndDerivesThePlaceToMeet) {
  const Variables step = {{"SLURM_PROCID", "5"},
                          {"SLURM_STEP_NUM_TASKS", "8"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                          {"SLURM_STEP_NODELIST", "gpu[03-04]"},
                          {"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_ID", "0"}};
  const auto role = made_from(step);
  EXPECT_EQ(role.rank, 5);
  EXPECT_EQ(role.world_size, 8);
  EXPECT_EQ(role.local_world_size, 4);
  EXPECT_EQ(role.master_address, "gpu03");
  EXPECT_EQ(role.master_port, made_from(step).master_port);
  EXPECT_GE(role.master_port, 20000);
}

TEST(RoleMakerTest, ABatchScriptWithoutSrunIsOneProcess) {
  EXPECT_EQ(made_from({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).world_size, 1);
}

TEST(RoleMakerTest, ReadsOpenMpi) {
  const auto role = made_from({{"OMPI_COMM_WORLD_RANK", "1"},
                               {"OMPI_COMM_WORLD_SIZE", "2"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                               {"PMIX_NAMESPACE", "job"}});
  EXPECT_EQ(role.rank, 1);
  EXPECT_EQ(role.master_address, "127.0.0.1");
  const auto text = refusal({{"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_NE(text.find("-x MASTER_ADDR"), std::string::npos) << text;
}

TEST(RoleMakerTest, ShowsBothOfContradictingVariables) {
  const auto text = refusal({{"RANK", "0"},
                             {"PADDLE_TRAINER_ID", "1"},
                             {"WORLD_SIZE", "2"},
                             {"PADDLE_TRAINERS_NUM", "4"}});
  EXPECT_NE(text.find("RANK=0 and PADDLE_TRAINER_ID=1 contradict each other"), std::string::npos)
      << text;
  EXPECT_NE(text.find("WORLD_SIZE=2 and PADDLE_TRAINERS_NUM=4 contradict"), std::string::npos)
      << text;
}

TEST(RoleMakerTest, ReportsEverythingThatIsWrongAtOnce) {
  auto text = refusal({{"RANK", "one"}});
  EXPECT_NE(text.find("RANK='one' is not a whole number"), std::string::npos) << text;
  text = refusal({{"RANK", "1"}});
  EXPECT_NE(text.find("WORLD_SIZE is not set, though RANK is"), std::string::npos) << text;
  text = refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  EXPECT_NE(text.find("rank 2 is outside 0..1"), std::string::npos) << text;
  EXPECT_NE(text.find("MASTER_ADDR is not set"), std::string::npos) << text;
  EXPECT_NE(text.find("MASTER_PORT is 0"), std::string::npos) << text;
}

TEST(RoleMakerTest, ElasticNeedsALauncherThatHostsTheStore) {
  Variables variables = {{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "10.0.0.1"},
                         {"MASTER_PORT", "29500"},
                         {"FLEET_ELASTIC", "1"},
                         {"FLEET_MIN_RANKS", "2"}};
  const auto text = refusal(variables);
  EXPECT_NE(text.find("FLEET_ELASTIC=1 without fleetrun: rank 0 would host the store"),
            std::string::npos)
      << text;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_TRUE(made_from(variables).is_elastic);
  EXPECT_EQ(made_from(variables).min_ranks, 2);
}

TEST(RoleMakerTest, UnfoldsTheFirstSlurmHost) {
  EXPECT_EQ(first_slurm_host("node[03-05,9],x"), "node03");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("single"), "single");
  EXPECT_EQ(first_slurm_host("rack2-n[7]"), "rack2-n7");
}

}  // namespace
}  // namespace fleet
