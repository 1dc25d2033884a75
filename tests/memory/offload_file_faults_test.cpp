// SPDX-License-Identifier: Apache-2.0
// A file or disk that is full or cut short, and what a file leaves behind when it ends.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/offload/offload_file.h"

#include "tests/memory/offloaded_tensors.h"
#include "tests/support/error_of.h"
#include "tests/support/patience.h"

namespace fleet::memory {
namespace {

using namespace offload_test;  // NOLINT
using testing::error_message_of;

int open_files() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

// By this process, to files of any kind.
int64_t bytes_written() {
  std::ifstream io("/proc/self/io");
  std::string name;
  int64_t bytes = -1;
  while (io >> name >> bytes && name != "wchar:") {
  }
  return bytes;
}

int running_threads() {
  const auto all = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

TEST(OffloadFileFaultsTest, FullFileIsAnErrorOfThatTensorOnly) {
  OffloadFile file({.max_file_bytes = 10 * kMiB});
  const auto small = noise(4 * kMiB);
  auto first = on_disk(file, small);
  const auto large = file.write(noise(7 * kMiB));
  const auto text = error_message_of([&] { file.drain(); });
  EXPECT_NE(text.find("[offload] a tensor of 7.00 MiB does not fit: 4.00 MiB of the file in"),
            std::string::npos)
      << text;
  EXPECT_EQ(error_message_of([&] { file.read(large); }), text);
  file.drain();  // told once
  EXPECT_TRUE(same(file.read(first), small));
  first = {};
  const auto again = on_disk(file, noise(7 * kMiB));
  EXPECT_EQ(file.statistics().extent_bytes, 7 * kMiB);
}

TEST(OffloadFileFaultsTest, FullDiskIsAnErrorAndTheThreadSurvives) {
  OffloadFile file;
  const auto small = noise(kMiB);
  const auto first = on_disk(file, small);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = 3 * kMiB;
  setrlimit(RLIMIT_FSIZE, &limit);
  const auto large = file.write(noise(8 * kMiB));
  const auto text = error_message_of([&] { file.drain(); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(text.find("cannot write"), std::string::npos) << text;
  EXPECT_NE(text.find("File too large"), std::string::npos) << text;
  EXPECT_NE(text.find("fix: make room there"), std::string::npos) << text;
  EXPECT_EQ(error_message_of([&] { file.read(large); }), text);
  EXPECT_TRUE(same(file.read(first), small));
  EXPECT_EQ(file.statistics().extent_bytes, kMiB);
  const auto more = noise(8 * kMiB);
  EXPECT_TRUE(same(file.read(on_disk(file, more)), more));
}

TEST(OffloadFileFaultsTest, TruncatedFileIsAnErrorNotAHang) {
  OffloadFile file;
  const auto small = noise(kMiB);
  const auto first = on_disk(file, small);
  const auto second = on_disk(file, noise(3 * kMiB + 100));
  ASSERT_EQ(ftruncate(file.descriptor(), 2 * kMiB), 0);
  file.prefetch(second);
  const auto text = error_message_of([&] { file.read(second); });
  EXPECT_NE(text.find("cannot read"), std::string::npos) << text;
  EXPECT_NE(text.find("the file ends before that"), std::string::npos) << text;
  EXPECT_EQ(error_message_of([&] { file.read(second); }), text);
  EXPECT_TRUE(same(file.read(first), small));
}

TEST(OffloadFileFaultsTest, MissingDirectoryIsAnError) {
  const auto text = error_message_of([] { OffloadFile file({.directory = "/nowhere/at all"}); });
  EXPECT_NE(text.find("cannot make a file in /nowhere/at all: No such file"), std::string::npos)
      << text;
}

TEST(OffloadFileFaultsTest, LeavesNothingBehind) {
  const auto directory = std::filesystem::path(::testing::TempDir()) /
                         ("fleet_offload_test_" + std::to_string(getpid()));
  std::filesystem::create_directory(directory);
  at::set_num_threads(1);  // whose pool would start in between
  { OffloadFile warm_up; }
  const auto files = open_files(), threads = running_threads();
  OffloadFile::Ticket survivor;
  Caller caller;
  const auto charged = BudgetAllocator::cpu().counter().live();
  const auto written = bytes_written();
  {
    OffloadFile file({.directory = directory.string(), .buffer_bytes = kMiB});
    file.set_write_delay([&] { caller.until_asleep(); });
    EXPECT_TRUE(std::filesystem::is_empty(directory)) << "the file has a name";
    EXPECT_EQ(running_threads(), threads + 1);
    EXPECT_EQ(BudgetAllocator::cpu().counter().live(), charged + kMiB);
    const auto tensor = torch::zeros({64 * kMiB}, torch::kByte);
    survivor = file.write(tensor);
    std::vector<OffloadFile::Ticket> more;
    for (int i = 0; i < 50; ++i) more.push_back(file.write(tensor));
    caller.waits_now();  // for the end of the thread
  }
  // 3 GiB were queued: they are dropped, not written.
  EXPECT_LT(bytes_written() - written, 64 * kMiB);
  EXPECT_EQ(running_threads(), threads);
  survivor = {};
  EXPECT_EQ(open_files(), files);
  EXPECT_EQ(BudgetAllocator::cpu().counter().live(), charged);
  std::filesystem::remove(directory);
}

TEST(OffloadFileFaultsTest, ForkedChildCanEnd) {
  auto* file = new OffloadFile;
  auto ticket = file->write(noise(16 * kMiB));
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(launch::patient_s(30)));  // a hang ends in a signal
    delete file;
    { auto mine = std::move(ticket); }
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  file->drain();
  EXPECT_EQ(file->read(ticket).numel(), 16 * kMiB);
  delete file;
}

}  // namespace
}  // namespace fleet::memory
