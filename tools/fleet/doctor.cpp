// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "fleet/core/error.h"
#include "fleet/core/options/command_line.h"
#include "fleet/core/process/process_setup.h"
#include "fleet/core/process/standard_output.h"
#include "fleet/core/text/format.h"
#include "fleet/io/atomic_file.h"
#include "fleet/io/output_check.h"

#include "tools/fleet/clock_exchange.h"
#include "tools/fleet/commands.h"
#include "tools/fleet/doctor_folder.h"
#include "tools/fleet/doctor_limits.h"
#include "tools/fleet/doctor_machine.h"
#include "tools/fleet/doctor_network.h"

namespace fleet::tool {
namespace {

using Steady = std::chrono::steady_clock;

// Of the time that all probes together may take.
constexpr double kOneFolder = 0.4;

struct DoctorOptions {
  std::string snapshot_dir;
  std::string offload_dir;
  std::vector<std::string> peers;
  int64_t ranks = 0;
  int64_t master_port = 29500;
  int64_t listen = -1;
  double listen_s = 60;
  double limit_s = 4.5;
  std::string json;
};

const FieldList& fields_of(const DoctorOptions*) {
  using D = DoctorOptions;
  static const FieldList list{
      .area = "doctor",
      .fields = {
          field<&D::snapshot_dir>("snapshot_dir", "folder that training will save into"),
          field<&D::offload_dir>("offload_dir",
                                 "folder for offloaded tensors; empty: $TMPDIR, else /tmp, as in "
                                 "training"),
          field<&D::peers>("peers",
                           "other hosts: host to resolve its name, host:port to compare clocks "
                           "with 'fleet doctor --listen' there"),
          field<&D::ranks>("ranks", "ranks to be started on this machine; 0: one per core")
              .at_least(0)
              .at_most(100'000),
          field<&D::master_port>("master_port", "port of the rendezvous store")
              .at_least(1)
              .at_most(65535),
          field<&D::listen>("listen",
                            "only answer other hosts that compare clocks, at this port; 0: any")
              .at_least(0)
              .at_most(65535),
          field<&D::listen_s>("listen_s", "how long --listen answers")
              .above(0)
              .at_most(86400)
              .in_unit("s"),
          field<&D::limit_s>("limit_s", "time limit of the checks; a slow disk may need more")
              .at_least(1)
              .at_most(3600)
              .in_unit("s"),
          field<&D::json>("json", "write the rows into this file"),
      }};
  return list;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

int listen(const DoctorOptions& options) {
  ClockServer server(static_cast<int>(options.listen));
  std::printf("%s\n", format("answering at port {} for {:.0f} s; on another host: fleet doctor "
                             "--peers THIS_HOST:{}",
                             server.port(), options.listen_s, server.port())
                          .c_str());
  std::fflush(stdout);
  const int hosts = server.serve_for(milliseconds(options.listen_s));
  std::printf("%s\n", format("{} host{} asked", hosts, hosts == 1 ? "" : "s").c_str());
  return 0;
}

std::string temporary_folder() {
  const char* named = std::getenv("TMPDIR");
  return named != nullptr && *named != '\0' ? named : "/tmp";
}

std::vector<Finding> examine(const DoctorOptions& options, const std::vector<Peer>& peers) {
  const auto deadline = Steady::now() + milliseconds(options.limit_s);
  NetworkFindings network(peers, deadline);
  auto findings = machine_findings();
  const auto ranks = options.ranks > 0 ? options.ranks : available_cores();
  findings.push_back(descriptors_finding(ranks));
  findings.push_back(processes_finding(ranks));
  findings.push_back(port_finding(static_cast<int>(options.master_port)));
  const auto add = [&](const std::vector<Finding>& more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  const auto folder = [&](FolderUse use, const std::string& path) {
    add(folder_findings(
        use, path, std::min(deadline, Steady::now() + milliseconds(kOneFolder * options.limit_s))));
  };
  if (!options.snapshot_dir.empty()) folder(FolderUse::kSnapshots, options.snapshot_dir);
  folder(FolderUse::kOffload,
         options.offload_dir.empty() ? temporary_folder() : options.offload_dir);
  add(network.wait());
  return findings;
}

}  // namespace

int doctor(int argc, char** argv) {
  DoctorOptions options;
  parse({.about = "checks this machine before a job starts: CPU, memory, limits, disks, network, "
                  "and says what to change; exit code 1 when there is a problem",
         .groups = {{"Flags", options}},
         .examples = {"fleet doctor --snapshot_dir runs --ranks 8",
                      "fleet doctor --peers node2:29600   # while 'fleet doctor --listen 29600' "
                      "runs on node2"}},
        argc, argv);
  if (options.listen >= 0) return listen(options);
  const auto peers = parse_peers(options.peers);
  if (!options.json.empty()) check_output_file({options.json, "--json", "doctor"});
  const auto findings = examine(options, peers);
  write_text(STDOUT_FILENO, table_of(findings));
  const int problems = problems_in(findings);
  std::printf("%s\n", problems == 0
                          ? "no problem found"
                          : format("{} problem{}", problems, problems == 1 ? "" : "s").c_str());
  if (!options.json.empty()) write_file_atomically(options.json, json_of(findings), "doctor");
  return problems == 0 ? 0 : 1;
}

}  // namespace fleet::tool
