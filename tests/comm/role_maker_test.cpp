// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/role_maker.h"

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;
using Variables = std::map<std::string, std::string>;

RoleMaker made_from(const Variables& variables) {
  return RoleMaker::from_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

std::string refusal(const Variables& variables) {
  return error_message_of([&] { made_from(variables); });
}

TEST(RoleMakerTest, IsOneProcessWithoutALauncher) {
  const auto role = made_from({{"PATH", "/bin"}});
  EXPECT_EQ(role.rank, 0);
  EXPECT_EQ(role.world_size, 1);
}

TEST(RoleMakerTest, TheGuidesRoleMakerHasNoParameterServers) {
  EXPECT_NO_THROW(PaddleCloudRoleMaker{.is_collective = true}.role());
  EXPECT_EQ(error_message_of<UsageError>([] { PaddleCloudRoleMaker{}.role(); }),
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
  EXPECT_EQ(role.store_host, StoreHost::kTorchrun);
  EXPECT_TRUE(role.spans_machines);
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
  EXPECT_EQ(role.store_host, StoreHost::kRankZero);
  EXPECT_FALSE(role.knows_local_ranks);
  EXPECT_FALSE(role.spans_machines);
  EXPECT_EQ(role.endpoints.size(), 2u);
}

TEST(RoleMakerTest, ReadsASlurmStepAndDerivesTheMaster) {
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

TEST(RoleMakerTest, FindsTheMasterInAHostListWithTextBehindItsBrackets) {
  const auto role = made_from({{"SLURM_PROCID", "0"},
                               {"SLURM_STEP_NUM_TASKS", "2"},
                               {"SLURM_LOCALID", "0"},
                               {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                               {"SLURM_STEP_NODELIST", "gpu[01-02]-ib"}});
  EXPECT_EQ(role.master_address, "gpu01-ib");
  EXPECT_TRUE(role.spans_machines);
}

TEST(RoleMakerTest, CountsTheTasksOfItsOwnSlurmNode) {
  Variables step = {{"SLURM_PROCID", "4"},
                    {"SLURM_STEP_NUM_TASKS", "5"},
                    {"SLURM_LOCALID", "0"},
                    {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                    {"SLURM_STEP_NODELIST", "a,b,c"},
                    {"SLURM_NODEID", "2"}};
  EXPECT_EQ(made_from(step).local_world_size, 1);
  EXPECT_TRUE(made_from(step).knows_local_ranks);
  step.erase("SLURM_NODEID");
  EXPECT_FALSE(made_from(step).knows_local_ranks) << "they are counted when the ranks have met";
}

TEST(RoleMakerTest, WithoutTheStepsVariablesTheJobsAreRead) {
  const Variables job = {{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "1"}, {"SLURM_TASKS_PER_NODE", "4(x2)"},
                         {"SLURM_JOB_ID", "77"}, {"SLURM_JOB_NODELIST", "gpu[03-04]"}};
  const auto role = made_from(job);
  EXPECT_EQ(role.rank, 5);
  EXPECT_EQ(role.world_size, 8);
  EXPECT_EQ(role.local_world_size, 4);
  EXPECT_EQ(role.master_address, "gpu03");
  auto first = job;
  first["SLURM_PROCID"] = "0";
  first["SLURM_STEPID"] = "1";
  EXPECT_EQ(made_from(first).world_size, 8);
  EXPECT_EQ(made_from(first).source, "SLURM_PROCID, SLURM_NTASKS");
}

TEST(RoleMakerTest, ABatchScriptWithoutSrunDoesNotTrainAloneInSilence) {
  EXPECT_EQ(refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}),
            "[comm] the environment does not say clearly which rank this is:\n"
            "  - the job has 8 tasks (SLURM_NTASKS), and this process was not started by srun, so "
            "it would train alone: start it with srun, or say RANK=0 WORLD_SIZE=1 for one process\n"
            "  fix: start the program with fleetrun, or unset what a launcher has left behind");
  EXPECT_EQ(made_from({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}).world_size, 1);
  EXPECT_EQ(made_from({{"SLURM_PROCID", "0"}}).world_size, 1);
  EXPECT_EQ(made_from({{"SLURM_NTASKS", "8"}}).world_size, 1) << "the shell of an salloc";
  EXPECT_TRUE(says(refusal({{"SLURM_PROCID", "3"}}),
                   "SLURM_PROCID=3 implies several ranks, and neither "
                   "SLURM_STEP_NUM_TASKS nor SLURM_NTASKS says how many"));
  EXPECT_TRUE(says(refusal({{"SLURM_STEP_NUM_TASKS", "4"}}),
                   "SLURM_PROCID is not set, though SLURM_STEP_NUM_TASKS is"));
  EXPECT_TRUE(says(refusal({{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}}),
                   "Slurm does not give the address of rank 0: neither SLURM_STEP_NODELIST nor"));
}

// Under mpirun in a Slurm job, Slurm's step is that of mpirun's daemons.
TEST(RoleMakerTest, OpenMpiCountsBeforeSlurm) {
  const auto role = made_from({{"OMPI_COMM_WORLD_RANK", "3"},
                               {"OMPI_COMM_WORLD_SIZE", "4"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                               {"SLURM_PROCID", "0"},
                               {"SLURM_STEP_NUM_TASKS", "1"},
                               {"SLURM_STEP_NODELIST", "a"}});
  EXPECT_EQ(role.rank, 3);
  EXPECT_EQ(role.world_size, 4);
}

TEST(RoleMakerTest, ReadsPmi) {
  const Variables local = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  EXPECT_EQ(made_from(local).rank, 1);
  EXPECT_EQ(made_from(local).master_address, "127.0.0.1");
  EXPECT_TRUE(says(refusal({{"PMI_RANK", "1"}}), "PMI_SIZE is not set, though PMI_RANK is"));
  EXPECT_TRUE(says(refusal({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}),
                   "MPI does not give the address of rank 0: pass -env MASTER_ADDR"));
  EXPECT_TRUE(says(refusal({{"PMIX_RANK", "2"}}),
                   "PMIX_RANK=2 implies several ranks, and nothing gives their number"));
}

// `export RANK=0 WORLD_SIZE=1; srun -n 4 ./train` made four trainings of one rank each.
TEST(RoleMakerTest, VariablesThatAreLeftOverDoNotHideTheLauncher) {
  const Variables left_over = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  for (const auto* name : {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    auto task = left_over;
    task[name] = "4";
    EXPECT_TRUE(says(refusal(task), format("WORLD_SIZE=1 and {}=4 contradict each other", name),
                     "unset RANK and WORLD_SIZE"));
    for (const auto* launcher : {"FLEET_STORE", "TORCHELASTIC_RUN_ID"}) {
      auto started = task;
      started[launcher] = "127.0.0.1:2000";
      EXPECT_EQ(made_from(started).world_size, 1) << launcher << " counts its ranks itself";
    }
    task[name] = "1";
    EXPECT_EQ(made_from(task).world_size, 1);
  }
  Variables same = {{"RANK", "1"},           {"WORLD_SIZE", "2"},   {"MASTER_ADDR", "a"},
                    {"MASTER_PORT", "2000"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}};
  EXPECT_EQ(made_from(same).world_size, 2);
  const Variables paddle = {
      {"PADDLE_TRAINER_ID", "0"}, {"PADDLE_TRAINERS_NUM", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}};
  EXPECT_TRUE(says(refusal(paddle), "PADDLE_TRAINERS_NUM=1 and SLURM_STEP_NUM_TASKS=4"));
}

// A PyTorchJob of Kubernetes: torchrun's variables, without LOCAL_RANK.
TEST(RoleMakerTest, ReadsAPyTorchJob) {
  Variables pod = {{"RANK", "2"},
                   {"WORLD_SIZE", "3"},
                   {"MASTER_ADDR", "job-master-0"},
                   {"MASTER_PORT", "23456"},
                   {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
  const auto role = made_from(pod);
  EXPECT_EQ(role.rank, 2);
  EXPECT_EQ(role.local_rank, 0);
  EXPECT_FALSE(role.knows_local_ranks) << "they are counted when the ranks have met";
  EXPECT_EQ(role.store_host, StoreHost::kRankZero);
  pod["RANK"] = "0";
  pod["MASTER_ADDR"] = "localhost";  // as the master's own pod has it
  EXPECT_TRUE(made_from(pod).spans_machines);
}

TEST(RoleMakerTest, ReadsFleetrunsStoreAndKey) {
  Variables rank = {{"RANK", "1"},
                    {"WORLD_SIZE", "2"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "10.0.0.9"},
                    {"MASTER_PORT", "6070"},
                    {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                    {"FLEET_STORE", "10.0.0.1:29500"},
                    {"FLEET_JOB_KEY", "0123456789abcdef"}};
  const auto role = made_from(rank);
  EXPECT_EQ(role.store_host, StoreHost::kFleetrun);
  EXPECT_EQ(role.master_address, "10.0.0.1");
  EXPECT_EQ(role.master_port, 29500);
  EXPECT_EQ(role.job_key, "0123456789abcdef");
  rank["FLEET_JOB_KEY"] = "short";
  EXPECT_TRUE(says(refusal(rank), "FLEET_JOB_KEY has 5 bytes, and a job key has 16 to 4096"));
  rank["FLEET_STORE"] = "10.0.0.1";
  EXPECT_TRUE(says(refusal(rank), "FLEET_STORE: '10.0.0.1' is not host:port"));
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
  EXPECT_NE(text.find("MASTER_PORT is not set"), std::string::npos) << text;
}

TEST(RoleMakerTest, SaysOfEachVariableWhatIsWrongWithIt) {
  const auto no_number = refusal({{"RANK", "x"}, {"WORLD_SIZE", "2"}});
  EXPECT_TRUE(says(no_number, "RANK='x' is not a whole number"));
  EXPECT_EQ(no_number.find("RANK is not set"), std::string::npos) << no_number;
  EXPECT_TRUE(says(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
                   "MASTER_PORT is not set"));
  for (const std::string wrong : {"99999", "-1"}) {
    EXPECT_TRUE(says(
        refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", wrong}}),
        format("MASTER_PORT is {}, not a port", wrong)));
  }
}

// What another launcher has left behind would choose a GPU, or count threads.
TEST(RoleMakerTest, NoMoreRanksOnThisMachineThanInAll) {
  EXPECT_TRUE(says(refusal({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "3"}}),
                   "local rank 3 of 4 on this machine, of 1 in all"));
  EXPECT_TRUE(says(refusal({{"RANK", "1"},
                            {"WORLD_SIZE", "2"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "a"},
                            {"MASTER_PORT", "1"}}),
                   "local rank 1 of 4 on this machine, of 2 in all"));
}

TEST(RoleMakerTest, EveryEndpointOfPaddleIsRead) {
  EXPECT_TRUE(says(refusal({{"PADDLE_TRAINER_ID", "0"},
                            {"PADDLE_TRAINERS_NUM", "3"},
                            {"PADDLE_TRAINER_ENDPOINTS", "a:6170,junk,b:x"}}),
                   "PADDLE_TRAINER_ENDPOINTS: 'junk' is not host:port",
                   "PADDLE_TRAINER_ENDPOINTS: 'b:x' is not host:port"));
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
  variables["FLEET_STORE"] = "10.0.0.1:29500";
  EXPECT_TRUE(made_from(variables).is_elastic);
  EXPECT_EQ(made_from(variables).min_ranks, 2);
}

}  // namespace
}  // namespace fleet
