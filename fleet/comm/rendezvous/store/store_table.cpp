// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/store/store_table.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "fleet/comm/rendezvous/store/store_wire.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {
namespace {

using wire::Answer;
using wire::Op;
using wire::Reader;
using wire::Writer;

constexpr int64_t kLongest_ms = int64_t{366} * 24 * 3600 * 1000;

std::string said(bool yes) { return Writer(yes ? Answer::kYes : Answer::kNo).take(); }

StoreTable::Wait wait_in(Reader& fields, bool wants_values) {
  const auto limit = std::clamp<int64_t>(fields.number(), 0, kLongest_ms);
  return {fields.texts(), std::chrono::milliseconds(limit), wants_values};
}

}  // namespace

StoreTable::Outcome StoreTable::handle(const std::string& request) {
  Reader fields(request);
  const auto op = static_cast<Op>(fields.byte());
  const auto key = [&] { return fields.text(); };
  switch (op) {
    case Op::kSet: {
      const auto name = key();
      values_[name] = fields.text();
      return {said(true)};
    }
    case Op::kGet:
    case Op::kWait:
      return {.wait = wait_in(fields, op == Op::kGet)};
    case Op::kCheck:
      return {said(has_all(fields.texts()))};
    case Op::kAdd: {
      const auto name = key();
      return {add(name, fields.number())};
    }
    case Op::kCompareSet: {
      const auto name = key();
      const auto expected = fields.text();
      return {compare_set(name, expected, fields.text())};
    }
    case Op::kRemove:
      return {said(values_.erase(key()) > 0)};
    case Op::kCount:
      return {Writer(Answer::kYes).number(static_cast<int64_t>(values_.size())).take()};
    case Op::kAppend: {
      const auto name = key();
      values_[name] += fields.text();
      return {said(true)};
    }
    case Op::kMultiSet: {
      const auto names = fields.texts();
      const auto values = fields.texts();
      if (names.size() != values.size()) throw std::invalid_argument("keys without values");
      for (size_t i = 0; i < names.size(); ++i) values_[names[i]] = values[i];
      return {said(true)};
    }
  }
  throw std::invalid_argument("an unknown request");
}

bool StoreTable::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [&](const auto& key) { return has(key); });
}

std::string StoreTable::answer(const Wait& wait) const {
  if (!has_all(wait.keys)) return said(false);
  if (!wait.wants_values) return said(true);
  std::vector<std::string> values;
  for (const auto& key : wait.keys) values.push_back(values_.at(key));
  return Writer(Answer::kYes).texts(values).take();
}

// A counter is a decimal number, as in c10d's stores.
std::string StoreTable::add(const std::string& key, int64_t amount) {
  int64_t sum = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    const auto& text = found->second;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), sum);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
      throw std::invalid_argument("a sum of what is no number");
    }
  }
  if (__builtin_add_overflow(sum, amount, &sum)) throw std::invalid_argument("a sum too large");
  values_[key] = format("{}", sum);
  return Writer(Answer::kYes).number(sum).take();
}

// As in c10d: a key that is not set takes the value only if the expected value is empty.
std::string StoreTable::compare_set(const std::string& key, const std::string& expected,
                                    const std::string& desired) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    if (!expected.empty()) return Writer(Answer::kYes).text(expected).take();
    values_[key] = desired;
  } else if (found->second == expected) {
    found->second = desired;
  }
  return Writer(Answer::kYes).text(values_[key]).take();
}

}  // namespace fleet::comm
