#pragma once

#include <functional>
#include <string>

#include "lockstep/group.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2 {

/// How run_main() makes its ranks.
struct RunOptions {
  InitOptions init = {};
  int threads = 0;  ///< thread ranks of this process, by spawn(); 0 joins the launcher's world
  /// What is wrong with the command line; empty if nothing is. The startup reporter prints the text
  /// to stderr as it is, and run_main() returns 2 without a call of fn on every rank that has a
  /// usage error. No rank returns before the text is printed, because some launchers end all ranks
  /// with the first that fails. A rank that cannot join the world returns after 5 s.
  std::string usage_error = {};
};

/// The body of main(): joins the world, runs fn on every rank, and returns the exit code: 0, 1
/// after an error, or 2 after a usage error. An error of fn is recorded by record_error() and ends
/// the world. One rank prints it to stderr as "program: text", where program is the last part of
/// argv[0]. If init() fails, every rank prints its own error, the startup reporter first. fn throws
/// nothing but what derives from std::exception.
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

}  // namespace lockstep
