// SPDX-License-Identifier: Apache-2.0
// The command line of fleetrun, a word per line of the input.

#include "fuzz/words.h"
#include "tools/fleetrun/options.h"

namespace fleet::fuzz {
namespace {

using launch::Options;

void run(Bytes bytes) {
  const auto given = without_help(words_of(bytes));
  Options options;
  try {
    if (!accepts([&] { options = launch::parse_options(given); })) return;
  } catch (const HelpRequested&) {
    return;
  }
  require(!options.program.empty() && options.local_ranks() >= 1 && options.node_count() >= 1,
          "there is something to start");
  require(options.node_count() == 1 || !options.ips.empty() || options.master_address(),
          "several nodes know where to meet");
  require(launch::shown_options(options).size() > 10, "every option is shown");
  auto words = flags_for(options, Options{});
  std::erase(words, "--ips=");  // nodes by number have no addresses
  words.push_back("--");
  words.push_back(options.program);
  words.insert(words.end(), options.program_args.begin(), options.program_args.end());
  const auto again = launch::parse_options(words);
  require(are_equal(again, options) && again.program == options.program &&
              again.program_args == options.program_args,
          "written as flags and parsed again it is the same");
}

const Target target("fleetrun_flags", run);

}  // namespace
}  // namespace fleet::fuzz
