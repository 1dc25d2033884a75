// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/log.h"

#include <unistd.h>

#include <atomic>
#include <utility>

#include "fleet/core/log_subject.h"
#include "fleet/core/process/standard_output.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::log {
namespace {

std::atomic<int> g_rank{0};
std::atomic<int> g_world{1};
std::atomic<bool> g_enabled{true};

void put(int fd, const std::string& line) { write_text(fd, printable_lines(line) + "\n"); }

thread_local std::string t_subject;

std::string subject() { return t_subject.empty() ? "" : t_subject + ": "; }

std::string speaker() { return g_world > 1 ? format("rank {}: ", g_rank.load()) : ""; }

}  // namespace

SubjectScope::SubjectScope(std::string subject)
    : before_(std::exchange(t_subject, std::move(subject))) {}
SubjectScope::~SubjectScope() { t_subject = std::move(before_); }

void set_rank(int rank, int world_size) {
  g_rank = rank;
  g_world = world_size;
  g_enabled = rank == 0;
}

void set_enabled(bool enabled) { g_enabled = enabled; }

void info(std::string_view area, std::string_view message) {
  if (g_enabled) put(STDOUT_FILENO, format("[{}] {}{}", area, subject(), message));
}

void warn(std::string_view area, std::string_view message) {
  if (g_enabled) put(STDERR_FILENO, format("[{}] warning: {}{}", area, subject(), message));
}

void info_here(std::string_view area, std::string_view message) {
  put(STDOUT_FILENO, format("[{}] {}{}{}", area, speaker(), subject(), message));
}

void warn_here(std::string_view area, std::string_view message) {
  put(STDERR_FILENO, format("[{}] warning: {}{}{}", area, speaker(), subject(), message));
}

void plain(std::string_view text) {
  if (g_enabled) put(STDOUT_FILENO, std::string(text));
}

}  // namespace fleet::log
