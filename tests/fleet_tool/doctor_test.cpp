// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/offload/offload_file.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/fake_root.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"
#include "tools/fleet/commands.h"
#include "tools/fleet/doctor_folder.h"
#include "tools/fleet/doctor_limits.h"
#include "tools/fleet/doctor_machine.h"
#include "tools/fleet/doctor_network.h"

namespace fleet::tool {
namespace {

using fleet::testing::error_message_of;
using State = Finding::State;

struct Answer {
  int code = 0;
  std::string text;
};

// Of `fleet doctor WORDS...`; what is on this machine itself may be anything.
Answer doctor_says(std::vector<std::string> words) {
  words.insert(words.begin(), {"/usr/bin/fleet", "doctor"});
  if (std::ranges::find(words, "--limit_s") == words.end()) {
    words.insert(words.end(), {"--limit_s", "60"});  // disks may be busy
  }
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStdout();
  Answer answer;
  try {
    answer.code = run(static_cast<int>(argv.size()), argv.data());
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  answer.text = ::testing::internal::GetCapturedStdout();
  return answer;
}

::testing::AssertionResult is(const Finding& finding, State state, const char* found,
                              const char* fix = "") {
  if (finding.state != state || finding.found.find(found) == std::string::npos ||
      finding.fix.find(fix) == std::string::npos) {
    return ::testing::AssertionFailure()
           << name_of(finding.state) << ": " << finding.found << "\n  fix: " << finding.fix;
  }
  return ::testing::AssertionSuccess();
}

/// A port of the loopback interface with a listener.
struct Busy {
  Busy() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket.get(), generic, size), 0);
    EXPECT_EQ(::listen(socket.get(), 1), 0);
    EXPECT_EQ(::getsockname(socket.get(), generic, &size), 0);
    port = ntohs(address.sin_port);
  }

  Descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port = 0;
};

int free_port() { return Busy().port; }

/// Another host: a process that answers with a clock that is so far ahead.
class HostWithClock {
 public:
  explicit HostWithClock(double ahead_s) {
    ClockServer server(
        0, [ahead_s] { return system_nanoseconds() + static_cast<int64_t>(ahead_s * 1e9); });
    port_ = server.port();
    pid_ = ::fork();
    EXPECT_GE(pid_, 0);
    if (pid_ == 0) {
      server.serve_for(std::chrono::seconds(60));
      ::_exit(0);
    }
  }
  ~HostWithClock() {
    if (pid_ <= 0) return;  // kill(-1) would signal all processes
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  HostWithClock(const HostWithClock&) = delete;
  HostWithClock& operator=(const HostWithClock&) = delete;

  std::string address() const { return format("127.0.0.1:{}", port_); }

 private:
  int port_ = 0;
  pid_t pid_ = -1;
};

TEST(DoctorTest, HasARowForEverythingAndWritesThemAsJson) {
  const TemporaryFolder folder;
  const auto json = (folder.path() / "rows.json").string();
  const auto answer = doctor_says({"--snapshot_dir", folder.path().string(), "--offload_dir",
                                   folder.path().string(), "--json", json, "--master_port",
                                   format("{}", free_port())});
  for (const char* name :
       {"cpu", "kernels", "bf16", "cores", "memory", "huge pages", "openmp", "shared memory",
        "terminal", "descriptors", "processes", "port ", "snapshot folder", "snapshot disk",
        "offload folder", "offload disk", "host name"}) {
    EXPECT_TRUE(says(answer.text, format(" {}", name)));
  }
  const auto rows = nlohmann::json::parse(launch::contents(json));
  EXPECT_EQ(rows["problems"] == 0, answer.code == 0) << answer.text;
  EXPECT_EQ(rows["rows"].size(), 17u);
  EXPECT_EQ(rows["rows"][0]["name"], "cpu");
  size_t files = 0;
  for (const auto& left : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_EQ(left.path(), json) << "what a probe wrote must not stay";
    ++files;
  }
  EXPECT_EQ(files, 1u);
}

// Its rows may take a minute: disks are measured.
TEST(DoctorTest, FileOfRowsIsSeenToBeWritableBeforeThem) {
  const TemporaryFolder folder;
  EXPECT_TRUE(says(
      error_message_of([&] {
        doctor_says({"--json", folder.path().string(), "--offload_dir", folder.path().string()});
      }),
      "--json: cannot write", "Is a directory", "fix: "));
}

TEST(DoctorTest, SaysForHowManyRanksDescriptorsDo) {
  EXPECT_TRUE(is(descriptors_finding({1024, 4096}, 16), State::kOk,
                 "1024 open files in a process (up to 4096), enough for 677 ranks"));
  EXPECT_TRUE(is(descriptors_finding({64, 4096}, 16), State::kAdvice, "64 open files",
                 "16 ranks usually need 188: ulimit -n 188"));
  EXPECT_TRUE(is(descriptors_finding({64, 64}, 16), State::kProblem, "64 open files",
                 "16 ranks need 188: raise the hard limit"));
}

TEST(DoctorTest, FindsASmallLimitOfDescriptorsInItsProcess) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  // The hard limit cannot be raised again without privileges, so a child process lowers it.
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit small{40, 40};
    const bool is_found =
        ::setrlimit(RLIMIT_NOFILE, &small) == 0 && descriptors_finding(8).state == State::kProblem;
    ::_exit(is_found ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(DoctorTest, CountsProcessesByTheUsersLimitAndByControlGroups) {
  const FakeRoot root;
  EXPECT_TRUE(is(processes_finding({4096, 4096}, 96, 8, 4, root.path()), State::kOk,
                 "3994 more processes and threads (the user's limit (ulimit -u)), enough for 249"));
  root.write("proc/self/cgroup", "0::/docker/abc\n");
  root.write("sys/fs/cgroup/docker/abc/pids.max", "100\n");
  root.write("sys/fs/cgroup/docker/abc/pids.current", "20\n");
  EXPECT_TRUE(is(processes_finding({4096, 4096}, 96, 8, 4, root.path()), State::kProblem,
                 "74 more processes and threads (control group /docker/abc), enough for 4 ranks",
                 "8 ranks need 128: raise its pids.max"));
}

TEST(DoctorTest, ReadsTheCpuAndSaysWhatItLacks) {
  const FakeRoot root;
  root.write("proc/cpuinfo",
             "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse2 avx2 fma avx512f\n");
  EXPECT_TRUE(is(cpu_finding(root.path()), State::kOk,
                 "Some CPU: has AVX2; no AVX-512, AVX-512 BF16, AMX BF16"));
  root.write("proc/cpuinfo", "model name : Old CPU\nflags : sse2\n");
  EXPECT_TRUE(is(cpu_finding(root.path()), State::kAdvice, "Old CPU: no AVX2", "host's CPU model"));
}

TEST(DoctorTest, ReportsKernelsThatThisCpuLacks) {
  // Which kernels a process uses is decided once: another process asks.
  launch::Started program({"env", "FLEET_CPU=mmx", launch::beside("fleet"), "doctor",
                           "--master_port", format("{}", free_port())});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_TRUE(says(program.output(), "problem  kernels", "FLEET_CPU=mmx, which this CPU",
                   "fix: unset FLEET_CPU"));
}

TEST(DoctorTest, JudgesCoresMemoryAndHugePages) {
  const FakeRoot root;
  root.write("proc/loadavg", "0.10 0.10 0.10 1/100 1\n");
  EXPECT_TRUE(is(cores_finding(root.path()), State::kOk, "cores, load 0.1"));
  root.write("proc/loadavg", "500.0 0.10 0.10 1/100 1\n");
  EXPECT_TRUE(is(cores_finding(root.path()), State::kAdvice, "load 500.0", "other programs"));
  root.write("proc/self/cgroup", "0::/a\n");
  root.write("sys/fs/cgroup/a/cpu.max", "50000 100000\n");
  EXPECT_TRUE(is(cores_finding(root.path()), State::kAdvice, "control group /a leaves time for 0.5",
                 "ask for whole cores"));

  root.write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n");
  EXPECT_TRUE(is(memory_finding(root.path()), State::kOk, "64.00 GiB (this machine), 32.00 GiB"));
  root.write("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 1024 kB\n");
  EXPECT_TRUE(is(memory_finding(root.path()), State::kAdvice, "1.00 MiB avail", "--memory_budget"));
  root.write("sys/fs/cgroup/a/memory.max", "536870912\n");
  EXPECT_TRUE(is(memory_finding(root.path()), State::kProblem, "512.00 MiB (control group /a)",
                 "sbatch --mem"));

  EXPECT_TRUE(is(huge_pages_finding(root.path()), State::kOk, "no transparent ones"));
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_TRUE(is(huge_pages_finding(root.path()), State::kOk, "is madvise"));
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_TRUE(is(huge_pages_finding(root.path()), State::kAdvice, "is never", "echo madvise"));
}

TEST(DoctorTest, FindsAFolderThatCannotBeWritten) {
  const TemporaryFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  const bool is_root = ::geteuid() == 0;
  constexpr uid_t kNobody = 65534;
  if (is_root) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  const auto there = folder_findings(FolderUse::kSnapshots, folder.path(),
                                     std::chrono::steady_clock::now() + std::chrono::seconds(60));
  const auto answer = doctor_says({"--snapshot_dir", (folder.path() / "new" / "run").string(),
                                   "--master_port", format("{}", free_port())});
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_EQ(there.size(), 1u);
  EXPECT_TRUE(is(there[0], State::kProblem, "cannot be written: Permission denied",
                 "this user may write to"));
  EXPECT_EQ(answer.code, 1);
  EXPECT_TRUE(says(answer.text, "problem  snapshot folder", "not there yet",
                   "cannot be written: Permission denied"));
}

TEST(DoctorTest, FindsAFileInPlaceOfAFolder) {
  const TemporaryFolder folder;
  const auto file = folder.write("file", "x");
  const auto findings = folder_findings(
      FolderUse::kOffload, file, std::chrono::steady_clock::now() + std::chrono::seconds(60));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_TRUE(is(findings[0], State::kProblem, "is no folder"));
}

// A folder for snapshots is made by the program, one for offloaded tensors is not.
TEST(DoctorTest, FindsAnOffloadFolderThatIsNotThere) {
  const TemporaryFolder folder;
  const auto missing = folder.path() / "not" / "there";
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto findings = folder_findings(FolderUse::kOffload, missing, deadline);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_TRUE(is(findings[0], State::kProblem, "is not there", "mkdir -p "));
  EXPECT_THROW(memory::OffloadFile({.directory = missing.string()}), Error);
  EXPECT_EQ(folder_findings(FolderUse::kSnapshots, missing, deadline)[0].state, State::kOk);
}

TEST(DoctorTest, SaysWhatDiffersOnOtherFileSystems) {
  constexpr long kNfs = 0x6969, kTmpfs = 0x01021994, kExt4 = 0xEF53;
  EXPECT_TRUE(is(file_system_finding(FolderUse::kSnapshots, kNfs), State::kOk,
                 "NFS, over the network: all nodes see it"));
  EXPECT_TRUE(is(file_system_finding(FolderUse::kOffload, kNfs), State::kAdvice, "NFS",
                 "TMPDIR to a local disk"));
  EXPECT_TRUE(is(file_system_finding(FolderUse::kSnapshots, kTmpfs), State::kAdvice, "tmpfs",
                 "lost when the machine restarts"));
  EXPECT_TRUE(is(file_system_finding(FolderUse::kOffload, kTmpfs), State::kAdvice, "tmpfs",
                 "takes the very memory"));
  EXPECT_TRUE(is(file_system_finding(FolderUse::kOffload, kExt4), State::kOk, "ext4"));
  EXPECT_EQ(file_system_name(0x12), "type 0x12");
}

TEST(DoctorTest, FindsABusyPort) {
  const Busy busy;
  const auto answer = doctor_says({"--master_port", format("{}", busy.port)});
  EXPECT_EQ(answer.code, 1);
  EXPECT_TRUE(says(answer.text, format("problem  port {}", busy.port), "Address already in use",
                   "take another --master_port"));
  const FakeRoot root;
  root.write("proc/sys/net/ipv4/ip_local_port_range", "1024\t65535\n");
  EXPECT_TRUE(is(port_finding(free_port(), root.path()), State::kAdvice,
                 "in the ephemeral port range of the kernel", "ip_local_port_range"));
  root.write("proc/sys/net/ipv4/ip_local_port_range", "1\t2\n");
  EXPECT_TRUE(is(port_finding(free_port(), root.path()), State::kOk, "free"));
}

// .invalid is reserved for names that never resolve (RFC 6761).
TEST(DoctorTest, FindsANameThatDoesNotResolve) {
  const auto answer = doctor_says({"--peers", "no-such-host.invalid:29600,localhost",
                                   "--master_port", format("{}", free_port())});
  EXPECT_EQ(answer.code, 1);
  EXPECT_TRUE(says(answer.text, "problem  peer no-such-host.invalid", "fix: ", "peer localhost"));
  EXPECT_TRUE(answer.text.find("does not resolve") != std::string::npos ||
              answer.text.find("did not resolve in time") != std::string::npos)
      << answer.text;
}

TEST(DoctorTest, RefusesPeersThatAreNone) {
  for (const char* text : {"host:0", "host:70000", "host:x", ":29600", "::1", "[::1", "host:", ""})
    EXPECT_FALSE(Peer::parse(text)) << text;
  EXPECT_EQ(Peer::parse("[::1]:29600")->host, "::1");
  EXPECT_EQ(Peer::parse("[::1]:29600")->port, 29600);
  EXPECT_EQ(Peer::parse("node2")->port, 0);
  EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                     parse_peers({":5", "node2", "a:b"});
                   }),
                   "  - ':5' is no host and port\n  - 'a:b' is no host and port\n", "fix: "));
}

TEST(DoctorTest, FindsANumberOfThreadsThatProgramsRefuse) {
  for (const char* value : {"", "abc", "0"}) {
    setenv("OMP_NUM_THREADS", value, 1);
    EXPECT_TRUE(is(openmp_finding("/"), State::kProblem,
                   format("OMP_NUM_THREADS='{}' is not a number of threads", value).c_str(),
                   "unset it"))
        << value;
    unsetenv("OMP_NUM_THREADS");
  }
}

TEST(DoctorTest, ComparesClocksWithAnotherProcess) {
  const HostWithClock right(0), late(-1.5), far(3600);
  const auto answer =
      doctor_says({"--peers", format("{},{},{}", right.address(), late.address(), far.address()),
                   "--master_port", format("{}", free_port())});
  EXPECT_EQ(answer.code, 1);
  EXPECT_TRUE(says(answer.text, "clock of 127.0.0.1", "1.5 s behind this one",
                   "lines of their logs cannot be put in order", "3600.0 s ahead of this one",
                   "credentials of Slurm", "chrony"));
  EXPECT_FALSE(says(answer.text, "no connection"));
}

TEST(DoctorTest, ReportsAPeerPortWithoutAnswer) {
  const int nobody = free_port();
  const Busy silent;  // connects, and never answers
  const auto answer = doctor_says({"--limit_s", "3", "--peers",
                                   format("127.0.0.1:{},127.0.0.1:{}", nobody, silent.port),
                                   "--master_port", format("{}", free_port())});
  EXPECT_EQ(answer.code, 1);
  EXPECT_TRUE(says(answer.text, "no connection: Connection refused", "is not fleet doctor --listen",
                   format("fleet doctor --listen {}", nobody)));
}

TEST(DoctorTest, ListensForTheGivenTime) {
  launch::Started server({launch::beside("fleet"), "doctor", "--listen", "0", "--listen_s", "1.5"});
  ASSERT_TRUE(launch::eventually([&] { return server.output().find('\n') != std::string::npos; },
                                 std::chrono::seconds(60)));
  const auto text = server.output();
  const int port = std::atoi(text.substr(text.find("port ") + 5).c_str());
  const auto clock =
      ask_clock("127.0.0.1", port, std::chrono::steady_clock::now() + std::chrono::seconds(10));
  EXPECT_EQ(server.wait(std::chrono::seconds(60)), 0);
  if (clock.difference) {  // on a busy machine 1.5 s may be over
    EXPECT_TRUE(says(server.output(), "1 host asked"));
  }
}

TEST(DoctorTest, TakesTheMedianOfClockSamples) {
  constexpr int64_t kMs = 1'000'000;
  // The other clock is 50 ms ahead; one answer was held up for a second on its way back.
  const std::vector<ClockSample> samples = {{0, 51 * kMs, 52 * kMs, 3 * kMs},
                                            {10 * kMs, 62 * kMs, 62 * kMs, 14 * kMs},
                                            {20 * kMs, 71 * kMs, 71 * kMs, 1022 * kMs}};
  const auto clock = clock_difference(samples);
  EXPECT_NEAR(clock.ahead_s, 0.050, 1e-9);
  EXPECT_NEAR(clock.round_trip_s, 0.002, 1e-9);
  EXPECT_NEAR(clock.uncertain_s, 0.001, 1e-9);
  // Whatever another host sends.
  (void)clock_difference({{0, std::numeric_limits<int64_t>::min(), -1, 5}});
}

TEST(DoctorTest, EscapesWhatCouldSteerATerminal) {
  const auto table = table_of({{State::kOk, "host name", "clear\x1b[2J"}});
  EXPECT_EQ(table.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace fleet::tool
