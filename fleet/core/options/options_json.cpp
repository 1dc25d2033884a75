// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/options/options_json.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"

namespace fleet {
namespace {

using Json = nlohmann::ordered_json;

// ---- reading ------------------------------------------------------------------------------------

std::string place_of(std::string_view text, size_t byte) {
  const auto before = text.substr(0, std::min(byte == 0 ? 0 : byte - 1, text.size()));
  const auto line = 1 + std::ranges::count(before, '\n');
  const auto line_start = before.rfind('\n');
  const auto column =
      before.size() - (line_start == std::string_view::npos ? 0 : line_start + 1) + 1;
  return format("{}:{}", line, column);
}

// nlohmann's text is "[id] parse error at line L, column C: reason", or "[id] reason".
std::string reason_of(const Json::exception& error) {
  std::string_view text = error.what();
  text.remove_prefix(std::min(text.size(), text.find("] ") + 2));
  if (text.starts_with("parse error at ")) text.remove_prefix(text.find(": ") + 2);
  return std::string(text);
}

// Options are three deep. What is printed of a value that is nested without end takes a stack as
// deep.
constexpr int kDeepest = 100;

// The parser keeps the last of two equal keys without a word.
class RepeatedKeys {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) throw TooDeep();
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event == Json::parse_event_t::key && !open_.back().insert(parsed).second) {
      problems.push_back(format("key '{}' is given twice", parsed.get<std::string>()));
    }
    return true;
  }

  struct TooDeep {};
  std::vector<std::string> problems;

 private:
  std::vector<std::set<std::string>> open_;
};

std::string shown(const Json& json) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

template <typename Number>
std::optional<FieldValue> whole_number(const Json& json) {
  if (json.is_number_unsigned()) {
    const auto number = json.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<Number>::max())) return {};
    return static_cast<Number>(number);
  }
  if (!json.is_number_integer()) return {};
  const auto number = json.get<int64_t>();
  if (number < std::numeric_limits<Number>::min()) return {};
  return static_cast<Number>(number);
}

template <typename Number>
std::optional<FieldValue> real_number(const Json& json) {
  if (!json.is_number()) return {};
  const auto number = static_cast<Number>(json.get<double>());
  if (!std::isfinite(number)) return {};
  return number;
}

// The value of `json` in the type that the field has now; nothing when it does not fit.
struct Convert {
  const Json& json;

  std::optional<FieldValue> operator()(bool) const {
    if (!json.is_boolean()) return {};
    return json.get<bool>();
  }
  std::optional<FieldValue> operator()(int) const { return whole_number<int>(json); }
  std::optional<FieldValue> operator()(int64_t) const { return whole_number<int64_t>(json); }
  std::optional<FieldValue> operator()(float) const { return real_number<float>(json); }
  std::optional<FieldValue> operator()(double) const { return real_number<double>(json); }
  std::optional<FieldValue> operator()(const std::string&) const {
    if (!json.is_string()) return {};
    return json.get<std::string>();
  }
  std::optional<FieldValue> operator()(const std::vector<std::string>&) const {
    return list<std::string>([](const Json& element) { return Convert{element}(std::string()); });
  }
  std::optional<FieldValue> operator()(const std::vector<int64_t>&) const {
    return list<int64_t>([](const Json& element) { return Convert{element}(int64_t{}); });
  }

  template <typename Element, typename ConvertOne>
  std::optional<FieldValue> list(ConvertOne convert_one) const {
    if (!json.is_array()) return {};
    std::vector<Element> elements;
    for (const Json& element : json) {
      const auto value = convert_one(element);
      if (!value) return {};
      elements.push_back(std::get<Element>(*value));
    }
    return elements;
  }
};

// Why a value is not of the field's type. A whole number of more than 64 bits was read as a float.
std::string wrong_type(const FieldValue& like, const Json& json) {
  std::string too_large;
  if (json.is_number()) {
    const bool is_huge = json.is_number_float() && std::abs(json.get<double>()) >= 0x1p63;
    const bool is_whole =
        std::holds_alternative<int>(like) || std::holds_alternative<int64_t>(like);
    too_large =
        beyond_type(like, is_huge && is_whole ? format("{:.0f}", json.get<double>()) : json.dump());
  }
  return too_large.empty() ? format("expected {}, got {}", expected(like), shown(json)) : too_large;
}

// Walks a document beside a field list; nothing is assigned before everything was found right.
class Reader {
 public:
  void read(OptionsRef options, const Json& object, const std::string& prefix) {
    for (const auto& [key, value] : object.items()) {
      const auto& fields = options.list->fields;
      const auto field = std::ranges::find(fields, std::string_view(key), &Field::name);
      const std::string path = prefix + key;
      if (field == fields.end()) {
        problems.push_back(unknown(*options.list, path, key));
      } else if (field->nested()) {
        if (value.is_object()) {
          read(field->ref(options.object), value, path + ".");
        } else {
          problems.push_back(format("{}: expected an object {{...}}, got {}", path, shown(value)));
        }
      } else {
        read_leaf(*field, options.object, value, path);
      }
    }
  }

  void assign() const {
    for (const auto& [field, owner, value] : assignments_) field->set(owner, value);
  }

  std::vector<std::string> problems;

 private:
  struct Assignment {
    const Field* field;
    void* owner;
    FieldValue value;
  };

  void read_leaf(const Field& field, void* owner, const Json& json, const std::string& path) {
    const FieldValue current = field.get(owner);
    auto value = std::visit(Convert{json}, current);
    if (!value) {
      problems.push_back(format("{}: {}", path, wrong_type(current, json)));
    } else if (auto problem = problem_with(field, *value); !problem.empty()) {
      problems.push_back(format("{}: {}", path, problem));
    } else {
      assignments_.push_back({&field, owner, std::move(*value)});
    }
  }

  static std::string unknown(const FieldList& list, const std::string& path,
                             const std::string& key) {
    const auto absent = std::ranges::find(list.absent, std::string_view(key), &AbsentField::name);
    if (absent != list.absent.end()) return format("{}: {}", path, absent->why);
    std::vector<std::string> known;
    for (const Field& field : list.fields) known.emplace_back(field.name);
    return format("unknown key '{}'{}", path, did_you_mean(key, known));
  }

  std::vector<Assignment> assignments_;
};

std::string_view what_failed() { return std::strerror(errno); }

// ---- writing ------------------------------------------------------------------------------------

// A float as the shortest decimal that reads back to it: 0.8, not 0.800000011920929.
Json short_float(float number) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
  double shortest = 0;
  std::from_chars(buffer, end, shortest);
  return static_cast<float>(shortest) == number ? shortest : static_cast<double>(number);
}

Json to_json(const FieldValue& value) {
  if (const auto* number = std::get_if<float>(&value)) return short_float(*number);
  return std::visit([](const auto& plain) { return Json(plain); }, value);
}

bool finite(const FieldValue& value) {
  if (const auto* number = std::get_if<float>(&value)) return std::isfinite(*number);
  if (const auto* number = std::get_if<double>(&value)) return std::isfinite(*number);
  return true;
}

Json differences(OptionsView options, OptionsView defaults, const std::string& prefix) {
  Json object = Json::object();
  for (const Field& field : options.list->fields) {
    const std::string name(field.name);
    if (field.nested()) {
      auto inner =
          differences(field.view(options.object), field.view(defaults.object), prefix + name + ".");
      if (!inner.empty()) object[name] = std::move(inner);
    } else if (const FieldValue value = field.get(options.object);
               value != field.get(defaults.object)) {
      if (!finite(value)) {
        throw Error(options.list->area,
                    format("{}{} is {}, which JSON cannot say", prefix, name, to_text(value)));
      }
      object[name] = to_json(value);
    }
  }
  return object;
}

}  // namespace

void read_json(OptionsRef options, std::string_view text, std::string_view source) {
  const auto area = options.list->area;
  RepeatedKeys repeated;
  Json document;
  try {
    document = Json::parse(text, std::ref(repeated), /*allow_exceptions=*/true,
                           /*ignore_comments=*/true);
  } catch (const Json::parse_error& error) {
    throw UsageError(area, format("{} is not JSON, at {}: {}", source, place_of(text, error.byte),
                                  reason_of(error)));
  } catch (const RepeatedKeys::TooDeep&) {
    throw UsageError(
        area, format("{} is nested more than {} deep, which no options are", source, kDeepest));
  } catch (const Json::out_of_range& error) {  // a number beyond double
    throw UsageError(area, format("{} is not JSON that can be read: {}", source, reason_of(error)));
  }
  if (!document.is_object()) {
    throw UsageError(area,
                     format("{} must hold one object {{...}}, got {}", source, shown(document)));
  }
  Reader reader;
  reader.problems = std::move(repeated.problems);
  reader.read(options, document, "");
  if (!reader.problems.empty()) {
    throw UsageError::all(area, format("{} cannot be used as it is:", source), reader.problems);
  }
  reader.assign();
}

void load_json(OptionsRef options, const std::string& file) {
  constexpr size_t kMaxBytes = 16'000'000;
  const auto area = options.list->area;
  std::ifstream stream(file, std::ios::binary);
  std::string text;
  char part[4096];
  while (stream.good()) {
    stream.read(part, sizeof part);
    text.append(part, static_cast<size_t>(stream.gcount()));
    if (text.size() > kMaxBytes) {  // a device, or a file of weights
      throw UsageError(
          area,
          format("'{}' has more than {} MB and is no file of options", file, kMaxBytes / 1'000'000),
          "name a JSON file");
    }
  }
  if (!stream.eof()) {
    throw UsageError(area, format("cannot read '{}': {}", file, what_failed()),
                     "check the path and its permissions");
  }
  read_json(options, text, file);
}

std::string write_json(OptionsView options, OptionsView defaults) {
  FLEET_ASSERT(options.list == defaults.list, "defaults of another struct");
  try {
    return differences(options, defaults, "").dump(2) + "\n";
  } catch (const Json::type_error& error) {  // the only one there is: text that is not UTF-8
    throw Error(options.list->area, format("a text is not UTF-8, as JSON asks: {}", error.what()));
  }
}

}  // namespace fleet
