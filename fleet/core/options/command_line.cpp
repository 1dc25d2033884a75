// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/options/command_line.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "fleet/core/error.h"
#include "fleet/core/process/uncaught.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"
#include "fleet/core/version.h"

namespace fleet {
namespace {

std::string underscored(std::string_view name) {
  std::string out(name);
  std::ranges::replace(out, '-', '_');
  return out;
}

bool is_switch(const Field& field, const void* owner) {
  return std::holds_alternative<bool>(field.get(owner));
}

bool is_list(const FieldValue& value) {
  return std::holds_alternative<std::vector<std::string>>(value) ||
         std::holds_alternative<std::vector<int64_t>>(value);
}

// ---- values -------------------------------------------------------------------------------------

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) parts.emplace_back();  // "a," names an empty last element
  }
  return parts;
}

// The value of `text` in the type that the field has now; nothing when it is not one.
struct Parse {
  std::string_view text;

  template <typename Number>
  std::optional<FieldValue> number() const {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return {};
    return value;
  }

  std::optional<FieldValue> operator()(bool) const {
    for (const auto* yes : {"true", "True", "1", "on", "yes"}) {
      if (text == yes) return true;
    }
    for (const auto* no : {"false", "False", "0", "off", "no"}) {
      if (text == no) return false;
    }
    return {};
  }
  std::optional<FieldValue> operator()(int) const { return number<int>(); }
  std::optional<FieldValue> operator()(int64_t) const { return number<int64_t>(); }
  std::optional<FieldValue> operator()(float) const { return number<float>(); }
  std::optional<FieldValue> operator()(double) const { return number<double>(); }
  std::optional<FieldValue> operator()(const std::string&) const { return std::string(text); }
  std::optional<FieldValue> operator()(const std::vector<std::string>& so_far) const {
    auto list = so_far;
    for (auto& part : split(text)) list.push_back(std::move(part));
    return list;
  }
  std::optional<FieldValue> operator()(const std::vector<int64_t>& so_far) const {
    auto list = so_far;
    for (const auto& part : split(text)) {
      const auto value = Parse{part}(int64_t{});
      if (!value) return {};
      list.push_back(std::get<int64_t>(*value));
    }
    return list;
  }
};

FieldValue empty_list_like(const FieldValue& list) {
  if (std::holds_alternative<std::vector<std::string>>(list)) return std::vector<std::string>();
  return std::vector<int64_t>();
}

// ---- the line -----------------------------------------------------------------------------------

// "-3" and "-.5" are values; "-x" and "--x" are flags.
bool looks_like_flag(std::string_view argument) {
  if (argument.size() < 2 || argument[0] != '-') return false;
  return argument[1] != '.' && (argument[1] < '0' || argument[1] > '9');
}

class Parser {
 public:
  explicit Parser(const CommandLine& line) : line_(line) {
    for (const FlagGroup& group : line.groups) {
      for (Leaf& leaf : leaves(group.options)) {
        const std::string name = leaf.path;
        const bool added = flags_.emplace(underscored(name), std::move(leaf)).second;
        FLEET_ASSERT(added, format("two options of one program are called --{}", name));
      }
    }
  }

  void read(const std::vector<std::string>& arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& argument = arguments[i];
      if (argument == "--") {
        for (++i; i < arguments.size(); ++i) take_positional(arguments[i]);
        break;
      }
      if (argument == "--help" || argument == "-h") {
        help_requested = true;
        continue;
      }
      if (argument == "--version" && find("version") == nullptr) {
        version_wanted = true;
        continue;
      }
      if (!looks_like_flag(argument)) {
        take_positional(argument);
        if (!line_.stop_at_positional) continue;
        for (++i; i < arguments.size(); ++i) take_positional(arguments[i]);
        break;
      }
      const bool has_next = i + 1 < arguments.size();
      if (read_flag(argument, has_next ? &arguments[i + 1] : nullptr)) ++i;
    }
  }

  void assign() const {
    for (const auto& [flag, value] : values_) flag->field->set(flag->owner, value);
    if (line_.positional) *line_.positional = positional_;
  }

  std::vector<std::string> problems;
  bool help_requested = false;
  bool version_wanted = false;

 private:
  // Returns whether the next argument was taken as the value.
  bool read_flag(const std::string& argument, const std::string* next) {
    const auto equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    const std::string name = underscored(flag.substr(flag.starts_with("--") ? 2 : 1));
    std::optional<std::string> value;
    if (equals != std::string::npos) value = argument.substr(equals + 1);

    const Leaf* leaf = flag.starts_with("--") ? find(name) : nullptr;
    if (!leaf) return switched_off(flag, name, value) ? false : unknown(flag, name, next);
    if (value) {
      set(*leaf, flag, *value);
      return false;
    }
    if (is_switch(*leaf->field, leaf->owner)) {
      const bool next_says = next && (*next == "true" || *next == "false");
      set(*leaf, flag, next_says ? *next : "true");
      return next_says;
    }
    if (!next || looks_like_flag(*next)) {
      problems.push_back(
          format("{} needs a value: {}", flag, expected(leaf->field->get(leaf->owner))));
      return false;
    }
    set(*leaf, flag, *next);
    return true;
  }

  bool switched_off(const std::string& flag, const std::string& name,
                    const std::optional<std::string>& value) {
    if (!name.starts_with("no_")) return false;
    const Leaf* leaf = find(name.substr(3));
    if (!leaf || !is_switch(*leaf->field, leaf->owner)) return false;
    if (value) {
      problems.push_back(format("{} takes no value, got '{}'", flag, *value));
    } else {
      set(*leaf, flag, "false");
    }
    return true;
  }

  void set(const Leaf& leaf, const std::string& flag, const std::string& text) {
    const FieldValue current = leaf.field->get(leaf.owner);
    auto [so_far, first] = values_.try_emplace(&leaf, current);
    if (first && is_list(current)) so_far->second = empty_list_like(current);
    auto value = std::visit(Parse{text}, so_far->second);
    if (!value) {
      const auto beyond = beyond_type(current, text);
      problems.push_back(beyond.empty()
                             ? format("{}: expected {}, got '{}'", flag, expected(current), text)
                             : format("{}: {}", flag, beyond));
    } else if (auto problem = problem_with(*leaf.field, *value); !problem.empty()) {
      problems.push_back(format("{}: {}", flag, problem));
    } else {
      so_far->second = std::move(*value);
    }
  }

  bool unknown(const std::string& flag, const std::string& name, const std::string* next) {
    for (const FlagGroup& group : line_.groups) {
      for (const AbsentField& absent : group.options.list->absent) {
        if (absent.name == name) {
          problems.push_back(format("{}: {}", flag, absent.why));
          return next && !looks_like_flag(*next);
        }
      }
    }
    // One letter is near to every short name. A hint takes time in proportion to all names, and a
    // line with so many wrong flags is another program's.
    constexpr size_t kMaxHinted = 20;
    const bool is_hinted = name.size() > 1 && problems.size() < kMaxHinted;
    if (is_hinted && !known_flags_) known_flags_.emplace(known_flags());
    auto hint = is_hinted ? known_flags_->did_you_mean(name) : std::string();
    if (hint.empty() && !flag.starts_with("--")) hint = ": flags start with two dashes";
    problems.push_back(format("unknown flag {}{}", flag, hint));
    // Its value, most likely: one mistake is to be told once.
    return next && !looks_like_flag(*next) && !line_.positional;
  }

  std::vector<std::string> known_flags() const {
    std::vector<std::string> known = {"--help", "--version"};
    for (const auto& [name, leaf] : flags_) known.push_back("--" + leaf.path);
    return known;
  }

  const Leaf* find(const std::string& name) const {
    const auto found = flags_.find(name);
    return found == flags_.end() ? nullptr : &found->second;
  }

  void take_positional(const std::string& argument) {
    positional_.push_back(argument);
    if (!line_.positional) {
      problems.push_back(format("'{}' is not expected: this program takes flags only", argument));
    }
  }

  const CommandLine& line_;
  std::map<std::string, Leaf> flags_;
  std::optional<KnownNames> known_flags_;  // once a hint is wanted
  std::map<const Leaf*, FieldValue> values_;
  std::vector<std::string> positional_;
};

// ---- help ---------------------------------------------------------------------------------------

std::string flag_column(const LeafView& leaf) {
  struct Placeholder {
    std::string_view operator()(bool) const { return ""; }
    std::string_view operator()(int) const { return " N"; }
    std::string_view operator()(int64_t) const { return " N"; }
    std::string_view operator()(float) const { return " X"; }
    std::string_view operator()(double) const { return " X"; }
    std::string_view operator()(const std::string&) const { return " TEXT"; }
    std::string_view operator()(const std::vector<std::string>&) const { return " A,B,..."; }
    std::string_view operator()(const std::vector<int64_t>&) const { return " N,N,..."; }
  };
  return format("--{}{}", leaf.path, std::visit(Placeholder{}, leaf.value()));
}

std::string help_column(const LeafView& leaf) {
  const FieldValue value = leaf.value();
  std::string fallback = to_text(value);
  if (fallback.empty() || !problem_with(*leaf.field, value).empty()) fallback = "none";
  if (const auto* on = std::get_if<bool>(&value)) fallback = *on ? "on" : "off";
  std::string details;
  if (!leaf.field->unit.empty()) details = format("in {}, ", leaf.field->unit);
  if (const auto limits = limits_text(*leaf.field); !limits.empty()) details += limits + ", ";
  return format("{} ({}default {})", leaf.field->help, details, fallback);
}

}  // namespace

void parse(const CommandLine& line, int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  std::string program = argc > 0 ? argv[0] : "program";
  program = program.substr(program.rfind('/') + 1);
  handle_uncaught_exceptions();
  Parser parser(line);
  parser.read(arguments);
  if (parser.help_requested) throw HelpRequested(help_text(line, program));
  if (parser.version_wanted) throw HelpRequested(version_text(program));
  if (!parser.problems.empty()) {
    throw UsageError::all(
        "command line", format("{} cannot start:", program), parser.problems,
        format("{}{} --help lists every flag",
               line.stop_at_positional ? "flags of your program go behind its name; " : "",
               program));
  }
  parser.assign();
}

std::string help_text(const CommandLine& line, const std::string& program) {
  std::string text = format("{}: {}\n\nusage: {} [flags]{}{}\n", program, line.about, program,
                            line.positional ? " " : "", line.positional_help);
  text +=
      "A switch is turned off by --no_NAME; '-' and '_' are the same in a name. --version prints "
      "the versions.\n";
  for (const FlagGroup& group : line.groups) {
    const auto flags = leaves(OptionsView(group.options));
    if (flags.empty()) continue;  // all of its flags are refused by name
    size_t width = 0;
    for (const auto& leaf : flags) width = std::max(width, flag_column(leaf).size());
    text += format("\n{}:\n", group.title);
    for (const auto& leaf : flags) {
      text += format("  {:<{}}  {}\n", flag_column(leaf), width, help_column(leaf));
    }
  }
  if (!line.examples.empty()) text += "\nExamples:\n";
  for (const auto& example : line.examples) text += format("  {}\n", example);
  return text;
}

}  // namespace fleet
