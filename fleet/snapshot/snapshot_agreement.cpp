// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_agreement.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

constexpr int64_t kLongestText = 4096;
constexpr std::string_view kFixLine = "\n  fix: ";

struct Agreement {
  std::vector<RankFailure> failures;
  bool is_usage = false;
  int64_t number = 0;
};

Agreement agree(comm::Communicator& comm, const std::string& own, bool is_usage, int64_t number,
                std::string_view what) {
  const auto length = std::min<int64_t>(std::ssize(own), kLongestText);
  const auto all = torch::tensor({length, int64_t{is_usage}, number}, torch::kLong);
  comm.all_reduce(all, comm::ReduceOp::kMax, what);
  Agreement result{.is_usage = all[1].item<int64_t>() != 0, .number = all[2].item<int64_t>()};
  const auto longest = all[0].item<int64_t>();
  if (longest == 0) return result;
  constexpr int64_t kWord = sizeof(int64_t);
  auto words = torch::zeros({longest / kWord + 1}, torch::kLong);  // ends in a zero at least
  std::memcpy(words.data_ptr(), own.data(), static_cast<size_t>(length));
  const auto texts = comm.all_gather(words, "what went wrong");
  for (int rank = 0; rank < comm.size(); ++rank) {
    const auto row = texts[rank].contiguous();
    std::string text = static_cast<const char*>(row.const_data_ptr());
    if (!text.empty()) result.failures.push_back({rank, std::move(text)});
  }
  return result;
}

std::string headline_of(const std::string& text) {
  auto line = text.substr(0, text.find('\n'));
  const auto area = line.starts_with('[') ? line.find("] ") : line.npos;
  return area == line.npos ? line : line.substr(area + 2);
}

std::string fix_of(const std::string& text) {
  const auto fix = text.find(kFixLine);
  return fix == text.npos ? "" : text.substr(fix + kFixLine.size());
}

}  // namespace

std::vector<RankFailure> gather_failures(comm::Communicator& comm, const std::string& own,
                                         std::string_view what) {
  return agree(comm, own, /*is_usage=*/false, 0, what).failures;
}

int64_t run_on_all_ranks(comm::Communicator& comm, std::string_view what,
                         const std::function<int64_t()>& work) {
  std::exception_ptr failure;
  std::string text;
  bool is_usage = false;
  int64_t number = 0;
  try {
    number = work();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    text = *error.what() == '\0' ? "an exception without a text" : error.what();
    is_usage = dynamic_cast<const UsageError*>(&error) != nullptr;
  }
  const auto all = agree(comm, text, is_usage, number, what);
  if (failure) std::rethrow_exception(failure);
  if (all.failures.empty()) return all.number;
  const auto& first = all.failures.front();
  const auto told = format("rank {}: {}", first.rank, headline_of(first.text));
  if (all.is_usage) throw UsageError("snapshot", told, fix_of(first.text));
  throw Error("snapshot", told, fix_of(first.text));
}

std::string summary_line(const std::string& text) {
  const auto fix = fix_of(text);
  return headline_of(text) + (fix.empty() ? "" : "; fix: " + fix);
}

}  // namespace fleet
