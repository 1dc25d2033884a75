// SPDX-License-Identifier: Apache-2.0
// The files of examples/cluster, run as their schedulers would: stand-ins for srun, mpirun and
// torchrun set the variables of the real ones and start the ranks on this machine.

#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr std::chrono::seconds kPatience(100);

class ClusterTest : public ::testing::Test {
 protected:
  static fs::path example(const char* name) {
    return fs::path(FLEET_SOURCE_DIR) / "examples/cluster" / name;
  }

  // `command` in the test's folder, with the stand-ins and this build's programs before all others.
  Words in_folder(const Words& variables, const Words& command) const {
    Words words = {"env", "-C", folder_.path().string(),
                   format("PATH={}/tests/fleet_tool/stand_ins:{}:/usr/local/bin:/usr/bin:/bin",
                          FLEET_SOURCE_DIR, fs::path(beside("x")).parent_path().string()),
                   "FLEET_TIMEOUT_S=90"};
    words.insert(words.end(), variables.begin(), variables.end());
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

  // Trains a small net, and saves at the end of its epoch.
  static Words training() {
    return {beside("resnet50"), "--depth=18",      "--width=8", "--image_size=32",
            "--samples=128",    "--batch_size=16", "--lr=0.05", "--snapshot_dir=runs"};
  }
  static Words with_training(Words words, const Words& more = {}) {
    for (const auto& part : {training(), more}) words.insert(words.end(), part.begin(), part.end());
    return words;
  }

  // As sbatch starts a script: `nodes` of them, with `tasks` in all.
  Words sbatch(const char* script, int nodes, int tasks) const {
    return in_folder({"SLURM_JOB_ID=" + job_id(), format("SLURM_NNODES={}", nodes),
                      format("SLURM_NTASKS={}", tasks), "SLURM_CPUS_PER_TASK=1",
                      "SLURM_JOB_NODELIST=127.0.0.1", "SLURM_PROCID=0", "RANKS_PER_NODE=1"},
                     {example(script).string()});
  }
  // From which ports follow.
  static std::string job_id() { return format("{}", ::getpid()); }

  // Two ranks have trained one net: each has its part of the snapshot.
  void expect_two_ranks() const {
    std::vector<fs::path> snapshots;
    for (const auto& entry : fs::directory_iterator(folder_.path() / "runs")) {
      if (entry.path().filename().string().starts_with("step-")) snapshots.push_back(entry.path());
    }
    ASSERT_EQ(snapshots.size(), 1u) << "128 samples in batches of 2 x 16: one epoch of 4 updates";
    EXPECT_EQ(snapshots[0].filename(), "step-00000004");
    EXPECT_TRUE(fs::exists(snapshots[0] / "rank-1.json"));
    EXPECT_FALSE(fs::exists(snapshots[0] / "rank-2.json"));
  }

  std::string file(const std::string& name) const { return contents(folder_.path() / name); }

  TemporaryFolder folder_;
};

TEST_F(ClusterTest, ScriptsHaveNoMistakesOfTheShell) {
  int scripts = 0;
  for (const auto& entry : fs::directory_iterator(example(""))) {
    if (entry.path().extension() == ".yaml") continue;
    Started check({"bash", "-n", entry.path().string()});
    EXPECT_EQ(check.wait(), 0) << check.output();
    EXPECT_NE(::access(entry.path().c_str(), X_OK), -1) << entry.path() << " is not executable";
    ++scripts;
  }
  EXPECT_EQ(scripts, 5);
}

TEST_F(ClusterTest, SbatchTrainsOneRankPerTask) {
  Started job(with_training(sbatch("slurm.sbatch", 1, 2)));
  ASSERT_EQ(job.wait(kPatience), 0)
      << job.output() << file(format("fleet-{}.rank-0.log", job_id()));
  expect_two_ranks();
  EXPECT_TRUE(says(file(format("fleet-{}.rank-0.log", job_id())), "[train] epoch 0: loss"));
  EXPECT_FALSE(says(file(format("fleet-{}.rank-1.log", job_id())), "[train]"));
  EXPECT_FALSE(says(job.output(), "requeued"));
}

TEST_F(ClusterTest, SbatchRequeuesAJobThatWasAskedToStop) {
  auto words = sbatch("slurm.sbatch", 1, 2);
  words.insert(words.end(), {"sh", "-c", "exit 143"});
  Started job(words);
  EXPECT_EQ(job.wait(kPatience), 143);
  EXPECT_TRUE(says(job.output(), "requeued " + job_id()));
}

// scancel sends SIGTERM too, and requeue works on jobs that are cancelled.
TEST_F(ClusterTest, SbatchLeavesAJobThatIsCancelledAlone) {
  for (const auto* script : {"slurm.sbatch", "slurm_fleetrun.sbatch"}) {
    auto words = sbatch(script, 1, 1);
    words.insert(words.end() - 1, "JOB_STATE=CANCELLED");
    words.insert(words.end(), {"sh", "-c", "exit 143"});
    Started job(words);
    EXPECT_EQ(job.wait(kPatience), 143) << job.output();
    EXPECT_FALSE(says(job.output(), "requeued")) << job.output();
  }
}

TEST_F(ClusterTest, ScriptsSayHowTheyAreStarted) {
  Started batch({"env", "-u", "SLURM_JOB_ID", "bash", example("slurm.sbatch").string(), "true"});
  EXPECT_NE(batch.wait(kPatience), 0);
  EXPECT_TRUE(says(batch.output(), "submit this script with sbatch"));
  Started mpi({example("mpirun.sh").string(), "hosts"});
  EXPECT_NE(mpi.wait(kPatience), 0);
  EXPECT_TRUE(says(mpi.output(), "./mpirun.sh HOSTFILE RANKS PROGRAM"));
}

TEST_F(ClusterTest, SbatchTrainsWithOneFleetrunPerNode) {
  Started job(with_training(sbatch("slurm_fleetrun.sbatch", 2, 2)));
  ASSERT_EQ(job.wait(kPatience), 0) << job.output();
  expect_two_ranks();
  EXPECT_TRUE(says(job.output(), "[train] epoch 0: loss"));
  EXPECT_TRUE(fs::exists(folder_.path() / "log" / job_id() / "node-0"));
  EXPECT_TRUE(fs::exists(folder_.path() / "log" / job_id() / "node-1"));
}

TEST_F(ClusterTest, MpirunTrainsOneRankPerProcess) {
  const auto hosts = folder_.write("hosts", "# two ranks here\n127.0.0.1 slots=2\n").string();
  // Of the environment only what the script passes on arrives.
  Started job(with_training(in_folder({format("MASTER_PORT={}", 10000 + ::getpid() % 10000)},
                                      {example("mpirun.sh").string(), hosts, "2"})));
  ASSERT_EQ(job.wait(kPatience), 0) << job.output();
  expect_two_ranks();
  EXPECT_TRUE(says(job.output(), "[train] epoch 0: loss"));
}

TEST_F(ClusterTest, TorchrunTrainsInTheStoreOfItsAgent) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  const auto agent = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  Started job(
      with_training(in_folder({"RANKS_PER_NODE=2", format("MASTER_PORT={}", agent->getPort())},
                              {example("torchrun.sh").string()})));
  ASSERT_EQ(job.wait(kPatience), 0) << job.output();
  expect_two_ranks();
}

TEST_F(ClusterTest, ElasticJobTrainsWithLocalSgd) {
  Started job(with_training(in_folder({"OMP_NUM_THREADS=1"}, {example("elastic.sh").string()}),
                            {"--localsgd", "--localsgd_configs.k_steps=2"}));
  ASSERT_EQ(job.wait(kPatience), 0) << job.output();
  expect_two_ranks();
}

// Variables of the operator (kubeflow/training-operator, pytorch.SetPodEnv), the rest from the
// manifest.
TEST_F(ClusterTest, ManifestTrainsOneRankPerPod) {
  const auto manifest = example("pytorchjob.yaml").string();
  Started parse({"python3", "-c",
                 "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))",
                 manifest});
  if (parse.wait(kPatience) != 0) {  // no python3 with yaml: at least what a pod needs
    EXPECT_TRUE(says(contents(manifest), "kind: PyTorchJob", "Master:\n      replicas: 1",
                     "Worker:\n      replicas: 3", "command: [\"", "secretKeyRef:"));
    EXPECT_EQ(contents(manifest).find('\t'), std::string::npos);
    GTEST_SKIP() << "python3 has no yaml to read the manifest with";
  }
  const auto job = nlohmann::json::parse(parse.output());
  EXPECT_EQ(job["apiVersion"], "kubeflow.org/v1");
  EXPECT_EQ(job["kind"], "PyTorchJob");
  const auto& replicas = job["spec"]["pytorchReplicaSpecs"];
  EXPECT_EQ(replicas["Master"]["replicas"], 1);
  EXPECT_EQ(replicas["Worker"]["replicas"], 3);
  EXPECT_EQ(replicas["Worker"]["template"], replicas["Master"]["template"]);

  std::vector<std::unique_ptr<Started>> pods;
  const auto port = format("{}", 10000 + (::getpid() + 5000) % 10000);
  for (const char* kind : {"Master", "Worker"}) {  // one of each
    const auto& pod = replicas[kind]["template"]["spec"];
    ASSERT_EQ(pod["containers"].size(), 1u);
    const auto& container = pod["containers"][0];
    EXPECT_EQ(container["name"], "pytorch") << "the operator sets variables in that one only";
    EXPECT_EQ(container["resources"]["limits"]["cpu"], container["env"][0]["value"])
        << "as many threads as cores";
    Words variables = {"PYTHONUNBUFFERED=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port,
                       "WORLD_SIZE=2", format("RANK={}", pods.size())};
    for (const auto& variable : container["env"]) {
      const auto name = variable["name"].get<std::string>();
      const bool is_secret = variable.contains("valueFrom");
      variables.push_back(format(
          "{}={}", name,
          is_secret ? "0123456789abcdef0123456789abcdef" : variable["value"].get<std::string>()));
    }
    variables.push_back("OMP_NUM_THREADS=1");  // on this machine
    ASSERT_EQ(container["command"].size(), 1u);
    Words command = {
        beside(fs::path(container["command"][0].get<std::string>()).filename().string())};
    for (const auto& word : container["args"]) {
      auto text = word.get<std::string>();
      if (text.starts_with("/runs/")) text = "runs";
      if (command.back() == "--save_every") text = "4";  // the whole training
      command.push_back(text);
    }
    const auto small = training();
    command.insert(command.end(), small.begin() + 1, small.end() - 1);
    pods.push_back(std::make_unique<Started>(in_folder(variables, command)));
  }
  for (const auto& pod : pods) EXPECT_EQ(pod->wait(kPatience), 0) << pod->output();
  expect_two_ranks();
  EXPECT_TRUE(says(pods[0]->output(), "[train] epoch 0: loss"));
}

}  // namespace
}  // namespace fleet::launch
