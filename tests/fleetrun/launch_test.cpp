// SPDX-License-Identifier: Apache-2.0
// fleetrun as a user meets it: one node, workers that are small shell scripts.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/fleetrun/shell_ranks.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"
#include "tools/fleetrun/restart_backoff.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::map<std::string, std::string> variables(const std::string& text) {
  std::map<std::string, std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const auto equals = line.find('='); equals != line.npos)
      found[line.substr(0, equals)] = line.substr(equals + 1);
  return found;
}

// The numbers that workers have written into files of this name, once there are `many`.
std::vector<pid_t> pids(const Launched& job, size_t many) {
  std::vector<pid_t> list;
  eventually([&] {
    list.clear();
    for (const auto& entry : std::filesystem::directory_iterator(job.folder()))
      if (entry.path().filename().string().starts_with("pid."))
        if (const auto text = contents(entry.path()); text.ends_with('\n'))
          list.push_back(std::stoi(text));
    return list.size() >= many;
  });
  EXPECT_EQ(list.size(), many);
  return list;
}

bool all_gone(const std::vector<pid_t>& list) {
  return eventually([&] {
    for (const pid_t pid : list)
      if (!is_gone(pid)) return false;
    return true;
  });
}

// Writes its own number, then does `rest`. $FLEET_LOG_DIR/.. is the test's folder.
std::string with_pid(const std::string& rest) {
  return "echo $$ > $FLEET_LOG_DIR/../pid.$RANK; " + rest;
}

TEST(FleetrunTest, GivesEveryRankItsEnvironment) {
  unsetenv("OMP_NUM_THREADS");
  unsetenv("OMP_WAIT_POLICY");
  unsetenv("GOMP_SPINCOUNT");
  setenv("http_proxy", "http://kept", 1);
  Launched job({"--nproc_per_node", "2", "env"});
  ASSERT_EQ(job.wait(), 0) << job.output();
  for (int rank = 0; rank < 2; ++rank) {
    auto env = variables(job.log(rank));
    const auto own = format("{}", rank);
    EXPECT_EQ(env["RANK"], own);
    EXPECT_EQ(env["WORLD_SIZE"], "2");
    EXPECT_EQ(env["LOCAL_RANK"], own);
    EXPECT_EQ(env["LOCAL_WORLD_SIZE"], "2");
    EXPECT_EQ(env["GROUP_RANK"], "0");
    EXPECT_TRUE(env["FLEET_STORE"].starts_with("127.0.0.1:"));
    EXPECT_EQ(env["FLEET_JOB_KEY"].size(), 64u) << "a random one";
    EXPECT_EQ(env["MASTER_ADDR"] + ":" + env["MASTER_PORT"],
              env["PADDLE_TRAINER_ENDPOINTS"].substr(0, env["PADDLE_TRAINER_ENDPOINTS"].find(',')))
        << "rank 0's endpoint, for programs that have rank 0 host a store";
    EXPECT_EQ(env["TORCHELASTIC_USE_AGENT_STORE"], "False");
    EXPECT_EQ(env["TORCHELASTIC_RESTART_COUNT"], "0");
    EXPECT_EQ(env["TORCHELASTIC_MAX_RESTARTS"], "0");
    EXPECT_EQ(env["PADDLE_TRAINER_ID"], own);
    EXPECT_EQ(env["PADDLE_TRAINERS_NUM"], "2");
    EXPECT_EQ(env["PADDLE_RANK_IN_NODE"], own);
    EXPECT_EQ(env["FLEET_LOG_DIR"], (job.folder() / "log").string());
    EXPECT_EQ(env["http_proxy"], "http://kept");
    EXPECT_GE(std::stoi(env["OMP_NUM_THREADS"]), 1);
    EXPECT_EQ(env["OMP_WAIT_POLICY"], "passive");
    EXPECT_EQ(env["GOMP_SPINCOUNT"], "3000");
    EXPECT_FALSE(env.contains("FLAGS_selected_gpus"));
    EXPECT_FALSE(env.contains("FLEET_TTY")) << "its output is no terminal";
    const auto endpoints = env["PADDLE_TRAINER_ENDPOINTS"];
    const auto comma = endpoints.find(',');
    EXPECT_EQ(env["PADDLE_CURRENT_ENDPOINT"],
              rank == 0 ? endpoints.substr(0, comma) : endpoints.substr(comma + 1));
  }
  EXPECT_TRUE(says(job.output(), "RANK=0\n")) << "rank 0 is echoed";
  EXPECT_FALSE(says(job.output(), "\nRANK=1\n")) << "other ranks are not";
  EXPECT_TRUE(
      says(job.output(),
           "-----------  Configuration Arguments -----------\nelastic: false\ngpus: None\n"));
  EXPECT_TRUE(
      says(job.output(), "|                     PADDLE_TRAINERS_NUM                        2"));
}

TEST(FleetrunTest, StoreOutlivesRankZero) {
  const auto beside = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  Launched job({"--nproc_per_node=2", (beside / "test_fleetrun_store_rank").string()});
  EXPECT_EQ(job.wait(), 0) << job.output() << job.log(1);
  EXPECT_EQ(job.log(1), "rank 0 has gone, and left: a word\n");
}

TEST(FleetrunTest, AChosenWaitPolicyIsPassedOn) {
  Launched active({"env"}, {"env", "-u", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY=active"});
  ASSERT_EQ(active.wait(), 0) << active.output();
  EXPECT_EQ(variables(active.log(0))["OMP_WAIT_POLICY"], "active");
  EXPECT_FALSE(variables(active.log(0)).contains("GOMP_SPINCOUNT"));
  Launched counted({"env"}, {"env", "-u", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT=100"});
  ASSERT_EQ(counted.wait(), 0) << counted.output();
  EXPECT_EQ(variables(counted.log(0))["GOMP_SPINCOUNT"], "100");
  EXPECT_FALSE(variables(counted.log(0)).contains("OMP_WAIT_POLICY"));
}

TEST(FleetrunTest, GpusAndChosenThreadsArePassedOn) {
  Launched job({"--gpus", "4,6", "env"}, {"env", "OMP_NUM_THREADS=7"});
  ASSERT_EQ(job.wait(), 0) << job.output();
  auto env = variables(job.log(1));
  EXPECT_EQ(env["FLAGS_selected_gpus"], "6");
  EXPECT_EQ(env["CUDA_VISIBLE_DEVICES"], "4,6") << "device LOCAL_RANK must be the rank's own";
  EXPECT_EQ(env["OMP_NUM_THREADS"], "7");
}

TEST(FleetrunTest, PassesOnTheExitCodeAndShowsTheTailOfThatLog) {
  Launched job({"--nproc_per_node", "2", "sh", "-c",
                "echo started; if [ $RANK = 1 ]; then seq 1 30; echo the reason; exit 37; fi; "
                "exec sleep 600"});
  ASSERT_EQ(job.wait(), 37) << job.output();
  const auto text = job.output();
  EXPECT_TRUE(says(text, "error: [fleetrun] rank 1 (pid "));
  EXPECT_TRUE(says(text, ") exited with code 37 after "));
  EXPECT_TRUE(says(text, "workerlog.1:\n    | 12\n"));
  EXPECT_TRUE(says(text, "    | 30\n    | the reason\n"));
}

TEST(FleetrunTest, FailureOfTheShownRankPointsUpwards) {
  Launched job({"sh", "-c", "printf 'step 1\\rstep 2'; exit 3"});
  ASSERT_EQ(job.wait(), 3);
  const auto text = job.output();
  EXPECT_TRUE(says(text, "step 1\rstep 2\nerror: [fleetrun] rank 0 (pid "));
  EXPECT_TRUE(says(text, "its output is above and in "));
  EXPECT_FALSE(says(text, "| step 2")) << text;
}

TEST(FleetrunTest, NamesTheSignalAndTheFirstCause) {
  // Rank 0 fails because of it, as a rank does whose peer has gone, and is the first to be looked
  // at.
  Launched job({"--nproc_per_node", "2", "sh", "-c",
                "echo $$ > $FLEET_LOG_DIR/pid.$RANK; "
                "if [ $RANK = 1 ]; then echo last words; kill -SEGV $$; fi; " +
                    until_ended(1) + "exit 1"});
  ASSERT_EQ(job.wait(), 128 + SIGSEGV);
  const auto text = job.output();
  EXPECT_TRUE(says(text, "error: [fleetrun] rank 1 (pid "));
  EXPECT_TRUE(says(text, "was ended by signal 11 (SIGSEGV, Segmentation fault)"));
  EXPECT_TRUE(says(text, "1 more rank failed right after, probably because of it"));
  EXPECT_TRUE(says(text, "    | last words\n"));
}

TEST(FleetrunTest, EndsTheOthersEvenThoseThatIgnoreSigterm) {
  Launched job({"--nproc_per_node", "3", "--grace_s", "0.3", "sh", "-c",
                "trap '' TERM; " +
                    with_pid("[ $RANK = 2 ] || while :; do sleep 0.05; done; " +
                             until_written("../pid.0") + until_written("../pid.1") + "exit 5")});
  EXPECT_EQ(job.wait(), 5) << job.output();
  EXPECT_TRUE(all_gone(pids(job, 3)));
}

TEST(FleetrunTest, GivesTheOthersTimeToEndWell) {
  Launched job({"--nproc_per_node", "2", "sh", "-c",
                "if [ $RANK = 1 ]; then " + until_written("up") +
                    "exit 5; fi; trap 'echo saved; exit 0' TERM; echo up > $FLEET_LOG_DIR/up; "
                    "while :; do sleep 0.05; done"});
  EXPECT_EQ(job.wait(), 5);
  EXPECT_TRUE(says(job.log(0), "saved\n"));
}

TEST(FleetrunTest, EndsAStoppedRank) {
  Launched job({"--nproc_per_node", "2", "--grace_s=600", "sh", "-c",
                with_pid("[ $RANK = 0 ] && kill -STOP $$; " + until_written("../pid.0") +
                         "read -r other < $FLEET_LOG_DIR/../pid.0; until grep -q '^State:.T' "
                         "/proc/$other/status; do sleep 0.01; done; exit 5")});
  EXPECT_EQ(job.wait(), 5) << "SIGTERM must reach a rank that is stopped";
  EXPECT_TRUE(says(job.output(), ") is stopped (SIGSTOP or a debugger)\n"));
  EXPECT_TRUE(all_gone(pids(job, 2)));
}

TEST(FleetrunTest, StoppedRankIsLostAfterThePeerTimeout) {
  Launched job({"--nproc_per_node=2", "--peer_timeout_s=0.5", "--max_restarts=1", "sh", "-c",
                "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && kill -STOP $$; exit 0"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_TRUE(says(job.output(),
                   ") is stopped (SIGSTOP or a debugger), for more than 0.5 s: restart "
                   "1 of 1"))
      << job.output();
}

TEST(FleetrunTest, ProcessesOfARankEndWithIt) {
  Launched job({"sh", "-c", "sleep 600 & echo $! > $FLEET_LOG_DIR/../pid.child; exit 0"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_TRUE(all_gone(pids(job, 1)));
}

TEST(FleetrunTest, KilledLauncherLeavesNoOrphan) {
  // Every rank has a child that survives its parent and asks for nothing.
  Launched job({"--nproc_per_node", "2", "sh", "-c",
                with_pid("(trap '' TERM HUP; while :; do sleep 0.05; done) & "
                         "echo $! > $FLEET_LOG_DIR/../pid.child.$RANK; wait")});
  const auto processes = pids(job, 4);
  job.send(SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(all_gone(processes));
}

TEST(FleetrunTest, CtrlCEndsAllRanksOnceAndCleanly) {
  Launched job({"--nproc_per_node", "2", "--grace_s=600", "sh", "-c",
                "trap 'echo got INT; exit 0' INT; trap 'echo got TERM' TERM; " +
                    with_pid("while :; do sleep 0.05; done")});
  const auto processes = pids(job, 2);
  job.send(SIGINT);
  EXPECT_EQ(job.wait(), 130) << job.output();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(count(job.log(rank), "got INT\n"), 1U) << job.log(rank);
    EXPECT_FALSE(says(job.log(rank), "got TERM")) << job.log(rank);
  }
  EXPECT_EQ(count(job.output(), "SIGINT: ending 2 ranks"), 1U) << job.output();
  EXPECT_FALSE(says(job.output(), "error:")) << job.output();
  EXPECT_TRUE(all_gone(processes));
}

TEST(FleetrunTest, SecondCtrlCKillsAtOnce) {
  Launched job({"--grace_s=600", "sh", "-c",
                "trap '' INT TERM; " + with_pid("while :; do sleep 0.05; done")});
  const auto processes = pids(job, 1);
  job.send(SIGINT);
  ASSERT_TRUE(eventually([&] { return says(job.output(), "SIGINT: ending 1 rank"); }));
  job.send(SIGINT);
  EXPECT_EQ(job.wait(), 130);
  EXPECT_TRUE(all_gone(processes));
}

TEST(FleetrunTest, SigtermIsPassedOn) {
  Launched job({"sh", "-c",
                "trap 'echo got TERM; exit 0' TERM; " + with_pid("while :; do sleep 0.05; done")});
  pids(job, 1);
  job.send(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_EQ(count(job.log(0), "got TERM\n"), 1U) << job.log(0);
}

TEST(FleetrunTest, RestartsAllRanksAndKeepsTheirLogs) {
  Launched job({"--nproc_per_node", "2", "--max_restarts", "2", "sh", "-c",
                "echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
                "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 9; "
                "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 600; exit 0"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(job.log(rank),
              "try 0 of 2\n---------- fleetrun: restart 1 of 2 ----------\ntry 1 of 2\n");
  EXPECT_EQ(count(job.output(), "restart 1 of 2, its log is "), 1U) << job.output();
}

TEST(FleetrunTest, RestartsEndWithTheLastExitCode) {
  Launched job({"--max_restarts=2", "sh", "-c", "exit $((TORCHELASTIC_RESTART_COUNT + 10))"});
  EXPECT_EQ(job.wait(), 12) << job.output();
}

TEST(FleetrunTest, RestartsThatFailAtOnceComeSlower) {
  RestartBackoff pause;
  std::vector<int64_t> seconds;
  for (int attempt = 0; attempt < 8; ++attempt) {
    pause.count(0.5s);
    seconds.push_back(pause.next().count());
  }
  EXPECT_EQ(seconds, (std::vector<int64_t>{0, 1, 2, 4, 8, 16, 30, 30}));
  pause.count(3s);
  EXPECT_EQ(pause.next(), 0s) << "that one has lasted";
}

TEST(FleetrunTest, ProgramThatAShellDoesNotFindIsNotTriedAgain) {
  Launched job({"--max_restarts=3", "sh", "-c", "exec no-such-program"});
  EXPECT_EQ(job.wait(), 127) << job.output();
  EXPECT_FALSE(says(job.output(), "restart 1 of 3")) << job.output();
}

TEST(FleetrunTest, RankThatWasAskedToStopIsNotRestarted) {
  Launched job({"--nproc_per_node=2", "--max_restarts=3", "sh", "-c", "exit 143"});
  EXPECT_EQ(job.wait(), 143) << job.output();
  EXPECT_TRUE(says(job.output(), "was asked to stop and left in order after "));
  EXPECT_FALSE(says(job.output(), "restart 1")) << job.output();
  EXPECT_FALSE(says(job.output(), "error:")) << job.output();
}

TEST(FleetrunTest, RankThatHandlesSigtermGetsTimeToSave) {
  Launched job(
      {"--grace_s=0.2", "sh", "-c",
       "trap 'sleep 1; echo saved; exit 143' TERM; " + with_pid("while :; do sleep 0.05; done")});
  pids(job, 1);
  job.send(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.output();
  EXPECT_TRUE(says(job.log(0), "saved\n")) << job.output();
}

TEST(FleetrunTest, TimeToSaveHasAnEnd) {
  Launched job({"--save_grace_s=0.3", "sh", "-c",
                "trap 'echo deaf' TERM; " + with_pid("while :; do sleep 0.05; done")});
  const auto processes = pids(job, 1);
  job.send(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.output();
  EXPECT_TRUE(all_gone(processes));
}

TEST(FleetrunTest, WarningOfASchedulerIsPassedOnAndSigtermAfterItKillsNoRank) {
  Launched job({"sh", "-c",
                "trap 'echo got TERM; sleep 1.5; echo saved; exit 143' TERM; " +
                    with_pid("while :; do sleep 0.05; done")});
  pids(job, 1);
  job.send(SIGUSR1);
  ASSERT_TRUE(eventually([&] { return says(job.log(0), "got TERM\n"); })) << job.output();
  job.send(SIGTERM);
  EXPECT_EQ(job.wait(), 143) << job.output();
  EXPECT_TRUE(says(job.log(0), "saved\n")) << job.output();
}

TEST(FleetrunTest, PeerTimeoutReachesTheRanks) {
  Launched job({"--peer_timeout_s=2.5", "sh", "-c", "echo limit $FLEET_TIMEOUT_S"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_EQ(job.log(0), "limit 2.5\n");
}

TEST(FleetrunTest, WrongCommandLineExitsWithTwo) {
  Launched unknown({"--nproc-per-nod=2", "true"});
  EXPECT_EQ(unknown.wait(), 2);
  EXPECT_TRUE(
      says(unknown.output(), "unknown flag --nproc-per-nod (did you mean '--nproc_per_node'?)"))
      << unknown.output();
  Launched nothing(Words{});
  EXPECT_EQ(nothing.wait(), 2);
}

TEST(FleetrunTest, ProgramThatCannotBeStarted) {
  Launched missing({"no-such-program"});
  EXPECT_EQ(missing.wait(), 127);
  EXPECT_TRUE(says(missing.output(), "the program no-such-program was found in no folder of PATH"));
  Launched absent({"/nowhere/program"});
  EXPECT_EQ(absent.wait(), 127);
  EXPECT_TRUE(says(absent.output(), "the program /nowhere/program does not exist"));
  for (const auto* folder : {".", "..", "/etc"}) {
    Launched program({folder});
    EXPECT_EQ(program.wait(), 126);
    EXPECT_TRUE(says(program.output(), format("{} is a folder, not a program", folder)))
        << program.output();
  }
  Launched locked({"/etc/passwd"});
  EXPECT_EQ(locked.wait(), 126);
  EXPECT_TRUE(says(locked.output(), "fix: chmod +x /etc/passwd"));

  const auto script = std::filesystem::temp_directory_path() / format("no_format_{}", getpid());
  std::ofstream(script) << "no first line that says what this is\n";
  chmod(script.c_str(), 0755);
  Launched formless({"--nproc_per_node=2", script.string()});
  EXPECT_EQ(formless.wait(), 126);
  EXPECT_TRUE(says(formless.output(), "Exec format error"));
  std::filesystem::remove(script);
}

TEST(FleetrunTest, PythonProgramIsRunByPython) {
  const auto script = std::filesystem::temp_directory_path() / format("hello_{}.py", getpid());
  std::ofstream(script) << "import os, sys\nprint('python', os.environ['RANK'], sys.argv[1:])\n";
  Launched job({script.string(), "--lr", "1"});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.log(0), "python 0 ['--lr', '1']\n");
  std::filesystem::remove(script);
}

TEST(FleetrunTest, LogFolderThatCannotBeMade) {
  Launched job({"--log_dir=/dev/null/log", "true"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_TRUE(says(job.output(),
                   "error: [fleetrun] cannot create the log folder /dev/null/log (Not "
                   "a directory)\n  fix: choose another folder with --log_dir"))
      << job.output();
}

TEST(FleetrunTest, AddressOfAnotherMachineShowsBothLists) {
  Launched job({"--ips=203.0.113.1,203.0.113.2", "true"});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_TRUE(says(job.output(),
                   "none of the nodes is this machine: --ips 203.0.113.1, 203.0.113.2; "
                   "this machine has 127.0.0.1"))
      << job.output();
}

}  // namespace
}  // namespace fleet::launch
