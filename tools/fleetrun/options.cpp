// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/options.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "fleet/comm/rendezvous/host_list.h"
#include "fleet/core/error.h"
#include "fleet/core/options/command_line.h"
#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

constexpr int kMaxRanks = 65536;

// Names as Slurm writes them; the commas in brackets have ended words of the list.
std::vector<std::string> expanded(const std::vector<std::string>& names) {
  std::string list;
  for (const auto& name : names) list += (list.empty() ? "" : ",") + name;
  const bool has_brackets = list.find('[') != list.npos && list.find(':') == list.npos;
  return has_brackets ? comm::expand_host_list(list) : names;
}

void check(const Options& options, bool by_number) {
  const Options defaults;
  std::vector<std::string> problems;
  if (by_number && options.ips != defaults.ips)
    problems.emplace_back(
        "--ips names the nodes by address, --nnodes, --node_rank and --master by number: "
        "give one of the two");
  if (by_number && options.master_port != defaults.master_port)
    problems.emplace_back("--master_port belongs to --ips; --master has a port of its own");
  if (by_number && options.nnodes == 0)
    problems.emplace_back("--node_rank and --master need --nnodes");
  if (options.nnodes > 1 && (options.node_rank < 0 || options.master.empty()))
    problems.push_back(
        format("--nnodes {} needs --node_rank and --master host:port", options.nnodes));
  if (options.nnodes > 0 && options.node_rank >= options.nnodes)
    problems.push_back(format("--node_rank {} is outside 0..{} of --nnodes {}", options.node_rank,
                              options.nnodes - 1, options.nnodes));
  if (!options.master.empty() && !options.master_address())
    problems.push_back(
        format("--master takes host:port, not '{}': for example 10.0.0.1:29500", options.master));
  if (options.nproc_per_node > 0 && !options.gpus.empty() &&
      options.nproc_per_node != static_cast<int>(options.gpus.size()))
    problems.push_back(format("--nproc_per_node {} and --gpus {} do not agree: a rank has one GPU",
                              options.nproc_per_node, to_text(options.gpus)));
  for (const auto& gpu : options.gpus)
    if (gpu.empty() || gpu.find_first_not_of("0123456789") != std::string::npos)
      problems.push_back(format("--gpus takes numbers, not '{}': for example 0,1", gpu));
  for (const auto& [flag, list] : {std::pair{"gpus", &options.gpus}, {"ips", &options.ips}})
    if (std::set<std::string>(list->begin(), list->end()).size() != list->size())
      problems.push_back(format("--{} names one twice: '{}'", flag, to_text(*list)));
  if (options.min_ranks != defaults.min_ranks && !options.elastic)
    problems.emplace_back("--min_ranks needs --elastic");
  if (options.node_count() == 1 && options.min_ranks > options.local_ranks())
    problems.push_back(format("--min_ranks {} is more than the {} ranks there are",
                              options.min_ranks, options.local_ranks()));
  if (options.no_job_key && !options.job_key_file.empty())
    problems.emplace_back("--no_job_key and --job_key_file contradict each other");
  if (options.ips.empty()) problems.emplace_back("--ips is empty");
  if (options.log_dir.empty()) problems.emplace_back("--log_dir is empty");
  if (options.program.empty()) problems.emplace_back("no program to start");
  if (!problems.empty())
    throw UsageError::all("command line", "fleetrun cannot start:", problems,
                          "fleetrun --help shows two commands that run");
}

}  // namespace

const FieldList& fields_of(const Options*) {
  static const FieldList list{
      .area = "fleetrun",
      .fields = {
          field<&Options::nproc_per_node>("nproc_per_node",
                                          "ranks on this node; none: one per --gpus, else 1")
              .at_least(1)
              .at_most(kMaxRanks)
              .in_unit("processes"),
          field<&Options::gpus>("gpus", "GPUs of this node, one rank each: 0,1"),
          field<&Options::ips>(
              "ips",
              "all nodes, by address or name, or as Slurm writes them: gpu[01-04]; the "
              "first is the master"),
          field<&Options::nnodes>("nnodes", "instead of --ips: how many nodes")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&Options::node_rank>("node_rank", "with --nnodes: which one this is; 0: the master")
              .at_least(0)
              .at_most(kMaxRanks),
          field<&Options::master>("master", "with --nnodes: HOST:PORT of the store on node 0"),
          field<&Options::master_port>("master_port", "with --ips: port of the store on the first")
              .at_least(1)
              .at_most(65535),
          field<&Options::log_dir>("log_dir",
                                   "folder for workerlog.N of every rank N of this node"),
          field<&Options::log_keep>(
              "log_keep", "logs of earlier jobs that are kept, as workerlog.N.1 and so on")
              .at_least(0)
              .at_most(1000)
              .in_unit("files"),
          field<&Options::max_restarts>("max_restarts",
                                        "number of restarts of all ranks after a failure")
              .at_least(0)
              .at_most(1000000),
          field<&Options::elastic>("elastic",
                                   "with local SGD: the others continue without a rank that "
                                   "fails, which is restarted up to --max_restarts times"),
          field<&Options::min_ranks>(
              "min_ranks", "with --elastic: least number of ranks; with fewer the job ends")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&Options::grace_s>("grace_s", "time from SIGTERM to SIGKILL")
              .at_least(0)
              .at_most(86400)
              .in_unit("seconds"),
          field<&Options::save_grace_s>(
              "save_grace_s", "the same after SIGTERM for ranks that handle it: they save first")
              .at_least(0)
              .at_most(86400)
              .in_unit("seconds"),
          field<&Options::peer_timeout_s>(
              "peer_timeout_s", "how long a rank waits for a peer; none: FLEET_TIMEOUT_S, else 600")
              .at_least(0.001)
              .at_most(31536000)
              .in_unit("seconds"),
          field<&Options::job_key_file>(
              "job_key_file",
              "file with the secret of a job on several nodes, the same on each; none: "
              "FLEET_JOB_KEY, and on one node a new one"),
          field<&Options::no_job_key>("no_job_key",
                                      "no key: any host that reaches the store's port can read and "
                                      "change it"),
          field<&Options::join_timeout_s>("join_timeout_s", "how long nodes wait for each other")
              .at_least(0)
              .at_most(31536000)
              .in_unit("seconds"),
      }};
  return list;
}

int Options::local_ranks() const {
  if (nproc_per_node > 0) return nproc_per_node;
  return gpus.empty() ? 1 : static_cast<int>(gpus.size());
}

int Options::node_count() const {
  return ips.empty() ? std::max(nnodes, 1) : static_cast<int>(ips.size());
}

std::optional<Address> Options::master_address() const {
  const auto colon = master.rfind(':');
  if (colon == std::string::npos || colon == 0) return {};
  Address address{.host = master.substr(0, colon)};
  const auto* end = master.data() + master.size();
  const auto [stop, error] = std::from_chars(master.data() + colon + 1, end, address.port);
  if (error != std::errc() || stop != end || address.port == 0) return {};
  return address;
}

Options parse_options(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"fleetrun"};
  for (const auto& word : words) argv.push_back(word.c_str());
  Options options;
  std::vector<std::string> command;
  parse({.about = "starts one process per rank, on one node or several, and ends all of them when "
                  "one fails.\n"
                  "A program that ends in .py is run by python3; anything else is started as it "
                  "is.\n"
                  "Exit code: that of the rank that failed first, 128 + number for a signal; 2 for "
                  "a wrong\n"
                  "command line or too low a limit, 126 or 127 for a program that cannot be "
                  "started.",
         .groups = {{"Flags", options}},
         .examples = {"fleetrun --nproc_per_node 2 printenv RANK",
                      "fleetrun --nproc_per_node=2 --log_dir=/tmp/log sh -c 'echo rank $RANK of "
                      "$WORLD_SIZE'"},
         .positional = &command,
         .positional_help = "program [arguments of the program]",
         .stop_at_positional = true},
        static_cast<int>(argv.size()), argv.data());
  if (!command.empty()) {
    options.program = command.front();
    options.program_args.assign(command.begin() + 1, command.end());
  }
  options.ips = expanded(options.ips);
  const bool by_number = options.nnodes > 0 || options.node_rank >= 0 || !options.master.empty();
  check(options, by_number);
  if (by_number) options.ips.clear();
  return options;
}

std::vector<std::pair<std::string, std::string>> shown_options(const Options& options) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const auto& leaf : leaves(OptionsView(options))) {
    const auto text = to_text(leaf.value());
    const bool given = !text.empty() && problem_with(*leaf.field, leaf.value()).empty();
    rows.emplace_back(leaf.path, given ? text : "None");  // the guide's word
  }
  std::string arguments;
  for (const auto& word : options.program_args)
    arguments += format("{}'{}'", arguments.empty() ? "" : ", ", word);
  rows.emplace_back("training_script", options.program);
  rows.emplace_back("training_script_args", "[" + arguments + "]");
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace fleet::launch
