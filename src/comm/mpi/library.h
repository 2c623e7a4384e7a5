#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace lockstep::inline v0_2::mpi {

/// The MPI library of this process. Either the program initialises and finalises MPI, or Lockstep
/// initialises it and finalises it when the process exits with code 0.
class Library {
 public:
  /// Initialises MPI, unless the program has. MPI_Init waits for every process of the job and has
  /// no timeout: after `timeout`, the process exits with a line on stderr.
  /// Throws: BackendUnavailable if MPI is finalised, or if its thread level is too low.
  static void join(std::chrono::milliseconds timeout);

  /// Whether MPI is initialised and not finalised, in the process that initialised it.
  static bool running();
  /// Whether only the thread that initialised MPI may call it.
  static bool main_thread_only();
  static bool on_main_thread();
  /// The reason why a progress thread may not call MPI; empty if it may. Call it after join().
  static std::string why_no_thread();

  /// Registers a function that is called once before MPI is finalised, by Lockstep or by the
  /// program. Call it after join().
  static void at_end(std::function<void()> last_call);
  /// Prevents MPI_Finalize at exit, after the world has failed: it would wait for other ranks for
  /// ever.
  static void abandon();
};

}  // namespace lockstep::mpi
