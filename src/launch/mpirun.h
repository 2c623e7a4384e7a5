#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::launch {

/// How mpirun is supervised.
struct MpirunOptions {
  std::string program = "mpirun";  ///< a path, or a name that is looked up in PATH
  std::vector<std::string> arguments = {};
  /// How long mpirun may go on after the last rank of this host has ended.
  std::chrono::duration<double> linger{30};
};

/// Runs mpirun, and ends it when it does not return by itself. OpenMPI's mpirun waits for the
/// daemons of all hosts to confirm that the job is over, and for ever where the link to one of them
/// is cut. Which ranks this host has is read from /proc; without any there is no limit.
///
/// Standard streams are mpirun's. A signal that asks to end is passed on, a second one kills.
/// Where the environment does not set them, OpenMPI's keep-alive settings are lowered, so that its
/// daemons notice a cut link within 20 s while they have nothing to send.
///
/// Returns mpirun's exit code (128 + signal for a signal), or 1 when it had to be ended.
/// Throws: InvalidArgument for a program that cannot be executed or a bad option; CommError when
/// the machine refuses a process.
int run_mpirun(const MpirunOptions& options);

}  // namespace lockstep::launch
