// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fleet {

/// Inside a catch block: prints what was caught, as `run_main` does, and returns the exit code that
/// stands for it: 0 for HelpRequested, whose text goes to standard output; 2 for a UsageError; 143
/// for Stopped; 75 for RestartNeeded; 1 for everything else.
int report_current_exception();

/// From now on an uncaught exception, in any thread, ends the program with its
/// message instead of LibTorch's frames: by `abort()`, or with the exit code of
/// `report_current_exception` where that is another than 1. `run_main`, `parse` and `fleet::init`
/// call it, so that it holds for programs without `run_main` too. Does nothing where the program
/// has installed a handler of its own (std::set_terminate).
void handle_uncaught_exceptions();

/// From now on a write beyond the limit of file sizes (`ulimit -f`) fails, with an error that names
/// the file, where the signal would end the program without a word. Does nothing where the program
/// has a handler of its own.
void ignore_file_size_signal();

}  // namespace fleet
