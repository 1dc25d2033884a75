// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/host_list.h"

#include <charconv>
#include <cstdint>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::comm {
namespace {

constexpr size_t kMaxHosts = 65536;
constexpr size_t kMaxDigits = 9;

/// Reads one list from left to right.
class ListReader {
 public:
  explicit ListReader(std::string_view list) : list_(list) {}

  bool at_end() const { return at_ == list_.size(); }
  char next() const { return at_end() ? '\0' : list_[at_]; }
  bool take(char wanted) {
    if (next() != wanted) return false;
    ++at_;
    return true;
  }
  void require(char wanted) {
    if (!take(wanted)) fail(format("'{}' is missing", wanted));
  }
  std::string text_until(std::string_view ends) {
    const auto begin = at_;
    while (!at_end() && ends.find(next()) == ends.npos) ++at_;
    return std::string(list_.substr(begin, at_ - begin));
  }
  /// As written, with its leading zeros.
  std::string digits() {
    const auto begin = at_;
    while (next() >= '0' && next() <= '9') ++at_;
    if (at_ == begin) fail("a number is missing");
    if (at_ - begin > kMaxDigits) fail("a number is too long");
    return std::string(list_.substr(begin, at_ - begin));
  }
  int64_t number() {
    const auto text = digits();
    int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }

  [[noreturn]] void fail(const std::string& why) const {
    throw UsageError(
        "comm",
        format("the list '{}' cannot be read: {} at character {}", printable(list_), why, at_ + 1),
        "give it as Slurm writes it, such as gpu[01-04,7]-ib,login");
  }

 private:
  std::string_view list_;
  size_t at_ = 0;
};

// What stands between two brackets: "01-03,7".
std::vector<std::string> numbers_in_brackets(ListReader& in) {
  std::vector<std::string> numbers;
  do {
    const auto first = in.digits();
    const auto begin = std::stoll(first);
    const auto end = in.take('-') ? in.number() : begin;
    if (end < begin) in.fail(format("a range ends before it begins ({} after {})", end, begin));
    if (numbers.size() + static_cast<size_t>(end - begin) >= kMaxHosts) in.fail("too many hosts");
    for (auto number = begin; number <= end; ++number) {
      numbers.push_back(format("{:0{}}", number, first.size()));
    }
  } while (in.take(','));
  in.require(']');
  return numbers;
}

}  // namespace

std::vector<std::string> expand_host_list(std::string_view list) {
  ListReader in(list);
  std::vector<std::string> hosts;
  do {
    std::vector<std::string> names = {in.text_until("[],")};
    while (in.take('[')) {
      const auto numbers = numbers_in_brackets(in);
      const auto behind = in.text_until("[],");
      if (names.size() * numbers.size() > kMaxHosts) in.fail("too many hosts");
      std::vector<std::string> longer;
      for (const auto& name : names) {
        for (const auto& number : numbers) longer.push_back(name + number + behind);
      }
      names = std::move(longer);
    }
    if (names.front().empty()) in.fail("a name is missing");
    if (hosts.size() + names.size() > kMaxHosts) in.fail("too many hosts");
    hosts.insert(hosts.end(), names.begin(), names.end());
  } while (in.take(','));
  if (!in.at_end()) in.fail(format("'{}' stands alone", in.next()));
  return hosts;
}

std::vector<int> expand_task_counts(std::string_view list) {
  ListReader in(list);
  std::vector<int> counts;
  do {
    const auto tasks = static_cast<int>(in.number());
    int64_t nodes = 1;
    if (in.take('(')) {
      in.require('x');
      nodes = in.number();
      in.require(')');
    }
    if (counts.size() + static_cast<size_t>(nodes) > kMaxHosts) in.fail("too many nodes");
    counts.insert(counts.end(), static_cast<size_t>(nodes), tasks);
  } while (in.take(','));
  if (!in.at_end()) in.fail(format("'{}' stands alone", in.next()));
  return counts;
}

}  // namespace fleet::comm
