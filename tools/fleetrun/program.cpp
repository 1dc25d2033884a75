// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/program.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;

constexpr int kNotExecutable = 126;
constexpr int kNotFound = 127;

// The rules of execvp, except that a file without a known format is not handed to a shell.
std::string find_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string_view folders = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
  std::string found_but_locked;
  while (true) {
    const auto colon = folders.find(':');
    const std::string folder(folders.substr(0, colon));
    std::string file = (folder.empty() ? "." : folder) + "/" + name;
    std::error_code ignored;
    if (fs::is_regular_file(file, ignored)) {
      if (::access(file.c_str(), X_OK) == 0) return file;
      found_but_locked = file;
    }
    if (colon == std::string_view::npos) return found_but_locked;
    folders.remove_prefix(colon + 1);
  }
}

std::string find_executable(const std::string& name) {
  const bool has_folder = name.find('/') != std::string::npos;
  std::string file = has_folder ? name : find_in_path(name);
  std::error_code ignored;
  if (file.empty() && fs::is_directory(name, ignored)) file = name;  // refused below
  if (file.empty() || !fs::exists(file, ignored)) {
    const bool is_here = !has_folder && fs::exists(name, ignored);
    throw StartError(kNotFound,
                     has_folder ? format("the program {} does not exist", name)
                                : format("the program {} was found in no folder of PATH", name),
                     is_here
                         ? format("it lies in this folder: write ./{}", name)
                         : "check its name; it is the first word that is not a flag of fleetrun");
  }
  if (fs::is_directory(file, ignored))
    throw StartError(kNotExecutable, format("{} is a folder, not a program", file),
                     "name the program inside it");
  if (::access(file.c_str(), X_OK) != 0)
    throw StartError(kNotExecutable,
                     format("{} cannot be executed ({})", file, std::strerror(errno)),
                     format("chmod +x {}", file));
  return file;
}

}  // namespace

Program find_program(const std::string& name, const std::vector<std::string>& args) {
  Program program;
  if (name.ends_with(".py")) {
    if (::access(name.c_str(), R_OK) != 0)
      throw StartError(kNotFound, format("cannot read {} ({})", name, std::strerror(errno)),
                       "check the path of the script");
    program.file = find_executable("python3");
    program.words = {"python3", "-u", name};  // -u: lines reach the log as they are printed
  } else {
    program.file = find_executable(name);
    program.words = {name};
  }
  program.words.insert(program.words.end(), args.begin(), args.end());
  return program;
}

}  // namespace fleet::launch
