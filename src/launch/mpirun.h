#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::launch {

/// Options of run_mpirun().
struct MpirunOptions {
  std::string program = "mpirun";  ///< a path, or a name that is looked up in PATH
  std::vector<std::string> arguments = {};
  /// Longest time that mpirun may run after the last rank of this host has ended.
  std::chrono::duration<double> linger{30};
};

/// Runs mpirun, and ends it if it does not end by itself. OpenMPI's mpirun waits until the daemons
/// of all hosts confirm the end of the job, for ever if the link to one of them fails. The ranks of
/// this host are found in /proc; without ranks there is no limit.
///
/// mpirun inherits the standard streams. SIGUSR1, SIGUSR2 and a signal that asks to end are sent to
/// mpirun; a second one that asks to end kills it. Unless the environment sets them, OpenMPI's
/// keep-alive settings let its daemons detect a failed link after the ranks do: 45 s after the last
/// traffic with the default of LOCKSTEP_HEARTBEAT.
///
/// Returns mpirun's exit code (128 + signal for a signal), or 1 if it was ended here.
/// Throws: InvalidArgument for a program that cannot be executed or an invalid option. CommError if
/// the process cannot be started.
int run_mpirun(const MpirunOptions& options);

}  // namespace lockstep::launch
