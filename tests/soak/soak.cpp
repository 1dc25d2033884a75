// SPDX-License-Identifier: Apache-2.0
// What scripts/soak.sh runs: one soak, of which a row is printed and appended to a file.
//
//   soak --what faults --ranks 4 --elastic --count 20 --seed 1 --rows rows.jsonl

#include "tests/soak/soak.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <thread>

#include "fleet/core/error.h"
#include "fleet/core/options/command_line.h"
#include "fleet/core/seconds_since.h"

namespace fleet::launch {

const FieldList& fields_of(const SoakOptions*) {
  using O = SoakOptions;
  static const FieldList list{
      "soak",
      {field<&O::what>("what", "what is tried")
           .one_of({"faults", "disk", "link", "damage", "goodput"}),
       field<&O::ranks>("ranks", "of each job").at_least(2).at_most(64),
       field<&O::elastic>("elastic", "fleetrun --elastic with local SGD, and no restart of all"),
       field<&O::count>("count", "faults that are tried").at_least(1),
       field<&O::seed>("seed", "of everything that is drawn"),
       field<&O::seconds>("seconds", "no new job begins after").at_least(0).in_unit("seconds"),
       field<&O::minutes>("minutes", "that goodput is measured for").above(0).in_unit("minutes"),
       field<&O::rows>("rows", "file that the row is appended to")}};
  return list;
}

namespace {

std::string today() {
  char text[16] = {};
  const auto now = std::time(nullptr);
  std::strftime(text, sizeof text, "%F", std::gmtime(&now));
  return text;
}

int body(int argc, char** argv) {
  SoakOptions options;
  parse({.about = "disturbs trainings, and counts what they lose",
         .groups = {{"Flags", options}},
         .examples = {"soak --what faults --ranks 2 --count 5", "soak --what damage --count 100"}},
        argc, argv);
  const std::map<std::string, Row (*)(const SoakOptions&)> soaks = {{"faults", soak_faults},
                                                                    {"disk", soak_disk},
                                                                    {"link", soak_link},
                                                                    {"damage", soak_damage},
                                                                    {"goodput", soak_goodput}};
  const auto begin = std::chrono::steady_clock::now();
  Row row = {{"kind", "soak"}, {"what", options.what}};
  row.update(soaks.at(options.what)(options));
  row["seconds"] = static_cast<int64_t>(seconds_since(begin));
  row["seed"] = options.seed;
  row["cores"] = std::thread::hardware_concurrency();
  row["date"] = today();
  std::cout << row.dump() << std::endl;
  if (!options.rows.empty()) std::ofstream(options.rows, std::ios::app) << row.dump() << '\n';
  return row.at("problems").empty() ? 0 : 1;
}

}  // namespace
}  // namespace fleet::launch

int main(int argc, char** argv) { return fleet::run_main(fleet::launch::body, argc, argv); }
