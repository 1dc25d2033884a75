#include "tools/fleetrun/options.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/nearest_name.h"

namespace fleet::launch {
namespace {

constexpr auto kNone = "None";  // the guide's word for an option that was not given
constexpr auto kArea = "fleetrun";
constexpr int kMostRanks = 65536;

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> parts;
  while (true) {
    const auto comma = list.find(',');
    parts.emplace_back(list.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    list.remove_prefix(comma + 1);
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view between) {
  std::string text;
  for (const auto& part : parts) {
    if (!text.empty()) text += between;
    text += part;
  }
  return text;
}

template <typename Number>
Number number(const std::string& flag, const std::string& text, Number least, Number most) {
  Number value{};
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value >= least && value <= most))
    throw UsageError(
        kArea, format("--{} takes a number from {} to {}, not '{}'", flag, least, most, text));
  return value;
}

std::vector<std::string> names(const std::string& flag, const std::string& text) {
  auto parts = split(text);
  if (std::find(parts.begin(), parts.end(), "") != parts.end())
    throw UsageError(kArea,
                     format("--{} takes names with single commas between, not '{}'", flag, text));
  if (std::set<std::string>(parts.begin(), parts.end()).size() != parts.size())
    throw UsageError(kArea, format("--{} names one twice: '{}'", flag, text));
  return parts;
}

Address address(const std::string& flag, const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0)
    throw UsageError(kArea, format("--{} takes host:port, not '{}'", flag, text),
                     format("for example --{} 10.0.0.1:29500", flag));
  return {text.substr(0, colon), number<uint16_t>(flag, text.substr(colon + 1), 1, 65535)};
}

template <typename Value>
std::string shown(const std::optional<Value>& value) {
  return value ? format("{}", *value) : kNone;
}

struct Flag {
  std::string name;
  std::string takes;
  std::string help;  // ends with default and unit
  std::function<void(Options&, const std::string&)> set;
  std::function<std::string(const Options&)> show;
};

// One list for parsing, help and the configuration block.
const std::vector<Flag>& flags() {
  static const std::vector<Flag> list = {
      {"nproc_per_node", "N", "ranks on this node (default: one per --gpus, else 1; processes)",
       [](Options& o, const std::string& text) {
         o.nproc_per_node = number("nproc_per_node", text, 1, kMostRanks);
       },
       [](const Options& o) { return shown(o.nproc_per_node); }},
      {"gpus", "LIST", "GPUs of this node, one rank each: 0,1 (default: none; device numbers)",
       [](Options& o, const std::string& text) { o.gpus = names("gpus", text); },
       [](const Options& o) { return o.gpus.empty() ? kNone : join(o.gpus, ","); }},
      {"ips", "LIST", "all nodes, the first is the master (default: 127.0.0.1; addresses)",
       [](Options& o, const std::string& text) { o.ips = names("ips", text); },
       [](const Options& o) { return o.ips.empty() ? kNone : join(o.ips, ","); }},
      {"nnodes", "N", "instead of --ips: how many nodes (default: 1; nodes)",
       [](Options& o, const std::string& text) {
         o.nnodes = number("nnodes", text, 1, kMostRanks);
       },
       [](const Options& o) { return shown(o.nnodes); }},
      {"node_rank", "R", "with --nnodes: which one this is (default: none; 0 = master)",
       [](Options& o, const std::string& text) {
         o.node_rank = number("node_rank", text, 0, kMostRanks);
       },
       [](const Options& o) { return shown(o.node_rank); }},
      {"master", "HOST:PORT", "with --nnodes: where node 0 hosts the store (default: none)",
       [](Options& o, const std::string& text) { o.master = address("master", text); },
       [](const Options& o) {
         return o.master ? format("{}:{}", o.master->host, o.master->port) : kNone;
       }},
      {"master_port", "PORT", "with --ips: port of the store on the first (default: 29500; port)",
       [](Options& o, const std::string& text) {
         o.master_port = number<uint16_t>("master_port", text, 1, 65535);
       },
       [](const Options& o) { return format("{}", o.master_port); }},
      {"log_dir", "DIR", "workerlog.N of every local rank goes here (default: log; folder)",
       [](Options& o, const std::string& text) { o.log_dir = text; },
       [](const Options& o) { return o.log_dir; }},
      {"max_restarts", "N", "after a failure start all ranks again (default: 0; times)",
       [](Options& o, const std::string& text) {
         o.max_restarts = number("max_restarts", text, 0, 1000000);
       },
       [](const Options& o) { return format("{}", o.max_restarts); }},
      {"grace_s", "S", "from the polite signal to SIGKILL (default: 5; seconds)",
       [](Options& o, const std::string& text) {
         o.grace_s = number("grace_s", text, 0.0, 86400.0);
       },
       [](const Options& o) { return format("{}", o.grace_s); }},
      {"join_timeout_s", "S", "how long nodes wait for each other (default: 600; seconds)",
       [](Options& o, const std::string& text) {
         o.join_timeout_s = number("join_timeout_s", text, 0.0, 31536000.0);
       },
       [](const Options& o) { return format("{}", o.join_timeout_s); }},
  };
  return list;
}

const Flag& find_flag(const std::string& written) {
  std::string name = written;
  std::replace(name.begin(), name.end(), '-', '_');
  std::vector<std::string> known = {"help"};
  for (const auto& flag : flags()) {
    if (flag.name == name) return flag;
    known.push_back(flag.name);
  }
  throw UsageError(kArea, format("unknown flag --{}{}", written, did_you_mean(name, known)),
                   "flags of your program go behind its name; fleetrun --help lists all");
}

void check(Options& options, const std::set<std::string>& given) {
  std::vector<std::string> problems;
  const bool by_number =
      given.contains("nnodes") || given.contains("node_rank") || given.contains("master");
  if (by_number && given.contains("ips"))
    problems.emplace_back(
        "--ips names the nodes by address, --nnodes, --node_rank and --master by number: "
        "give one of the two");
  if (by_number && given.contains("master_port"))
    problems.emplace_back("--master_port belongs to --ips; --master has a port of its own");
  if (by_number && !options.nnodes) problems.emplace_back("--node_rank and --master need --nnodes");
  if (options.nnodes.value_or(1) > 1 && !(options.node_rank && options.master))
    problems.push_back(
        format("--nnodes {} needs --node_rank and --master host:port", *options.nnodes));
  if (options.nnodes && options.node_rank && *options.node_rank >= *options.nnodes)
    problems.push_back(format("--node_rank {} is outside 0..{} of --nnodes {}", *options.node_rank,
                              *options.nnodes - 1, *options.nnodes));
  if (options.nproc_per_node && !options.gpus.empty() &&
      *options.nproc_per_node != static_cast<int>(options.gpus.size()))
    problems.push_back(format("--nproc_per_node {} and --gpus {} do not agree: a rank has one GPU",
                              *options.nproc_per_node, join(options.gpus, ",")));
  if (options.log_dir.empty()) problems.emplace_back("--log_dir is empty");
  if (options.program.empty()) problems.emplace_back("no program to start");
  if (by_number) options.ips.clear();
  if (problems.empty()) return;
  const auto* fix = "fleetrun --help shows two commands that run";
  if (problems.size() == 1) throw UsageError(kArea, problems.front(), fix);
  std::string all = "the command line contradicts itself";
  for (const auto& problem : problems) all += "\n  - " + problem;
  throw UsageError(kArea, all, fix);
}

}  // namespace

int Options::local_ranks() const {
  if (nproc_per_node) return *nproc_per_node;
  return gpus.empty() ? 1 : static_cast<int>(gpus.size());
}

int Options::node_count() const {
  return ips.empty() ? nnodes.value_or(1) : static_cast<int>(ips.size());
}

Options parse_options(const std::vector<std::string>& words) {
  Options options;
  std::set<std::string> given;
  size_t at = 0;
  for (; at < words.size(); ++at) {
    const auto& word = words[at];
    if (word == "-h" || word == "--help") {
      options.help = true;
      return options;
    }
    if (word == "--") {
      ++at;
      break;
    }
    if (!word.starts_with("-")) break;
    if (!word.starts_with("--"))
      throw UsageError(kArea, format("unknown flag {}", word), "flags start with two dashes");
    const auto equals = word.find('=');
    const auto& flag = find_flag(word.substr(2, equals == std::string::npos ? equals : equals - 2));
    if (!given.insert(flag.name).second)
      throw UsageError(kArea, format("--{} is given twice", flag.name));
    if (equals != std::string::npos) {
      flag.set(options, word.substr(equals + 1));
    } else if (at + 1 < words.size()) {
      flag.set(options, words[++at]);
    } else {
      throw UsageError(kArea, format("--{} needs a value: {}", flag.name, flag.takes));
    }
  }
  if (at < words.size()) {
    options.program = words[at];
    options.program_args.assign(words.begin() + static_cast<std::ptrdiff_t>(at) + 1, words.end());
  }
  check(options, given);
  return options;
}

std::vector<std::pair<std::string, std::string>> shown_options(const Options& options) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const auto& flag : flags()) rows.emplace_back(flag.name, flag.show(options));
  rows.emplace_back("training_script", options.program);
  std::vector<std::string> quoted;
  for (const auto& word : options.program_args) quoted.push_back("'" + word + "'");
  rows.emplace_back("training_script_args", "[" + join(quoted, ", ") + "]");
  std::sort(rows.begin(), rows.end());
  return rows;
}

std::string help_text() {
  std::string text =
      "usage: fleetrun [flags] program [arguments of the program]\n"
      "\n"
      "Starts one process per rank, on one node or several, and ends all of them when one fails.\n"
      "A program that ends in .py is run by python3; anything else is started as it is.\n"
      "\n"
      "flags ('-' and '_' are the same; --flag value or --flag=value):\n";
  for (const auto& flag : flags())
    text += format("  {:<26}{}\n", format("--{} {}", flag.name, flag.takes), flag.help);
  text += format("  {:<26}{}\n", "--help", "this text (default: off)");
  text +=
      "\n"
      "exit code: that of the rank that failed first, 128 + number for a signal; 2 for a wrong\n"
      "command line, 126 or 127 for a program that cannot be started.\n"
      "\n"
      "try:\n"
      "  fleetrun --nproc_per_node 2 printenv RANK\n"
      "  fleetrun --nproc_per_node=2 --log_dir=/tmp/log sh -c 'echo rank $RANK of $WORLD_SIZE'\n";
  return text;
}

}  // namespace fleet::launch
