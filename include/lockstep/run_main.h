#pragma once

#include <functional>

#include "lockstep/group.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2 {

/// How run_main() makes its ranks.
struct RunOptions {
  InitOptions init = {};
  int threads = 0;  ///< thread ranks of this process, by spawn(); 0 joins the launcher's world
};

/// The body of main(): joins the world, runs fn on every rank, and returns the exit code, 0 or 1.
/// An error of fn is recorded by record_error() and ends the world. One rank prints it to stderr as
/// "program: text", where program is the last part of argv[0].
///
///     int main(int argc, char** argv) { return lockstep::run_main(argc, argv, train); }
///
/// Ranks: all, each in its main().
int run_main(int argc, char** argv, const std::function<void(const Group&)>& fn,
             const RunOptions& options = {});

/// Whether this process prints messages that all ranks have before they join a world, such as those
/// about the command line. True on rank 0 by the launcher's variables, and in a process without a
/// launcher.
bool is_startup_reporter();

/// Leaves the startup reporter time to print its message: some launchers end all ranks with the
/// first that fails. Returns at once in the reporter, else after 5 s.
void wait_for_startup_reporter();

}  // namespace lockstep
