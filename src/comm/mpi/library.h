#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace lockstep::inline v0_2::mpi {

/// MPI of this process: begun by the program, which then also ends it, or by Lockstep, and then
/// ended when the process exits with code 0.
class Library {
 public:
  /// Begins MPI unless the program has. Throws: BackendUnavailable when MPI has ended already, or
  /// does not allow what Lockstep needs. MPI waits there for every process of the job, and cannot
  /// be told for how long: after the timeout the process ends, with a line on stderr.
  static void join(std::chrono::milliseconds timeout);

  /// Whether MPI may be called.
  static bool running();
  /// Whether only the thread that began MPI may call it.
  static bool main_thread_only();
  static bool on_main_thread();
  /// Why no thread beside the program's own may call MPI; empty where one may. Call after join().
  static std::string why_no_thread();

  /// To be called once before MPI ends, by Lockstep or the program. Call after join().
  static void at_end(std::function<void()> last_call);
  /// The world has failed: MPI is not ended, since that would wait for ranks that never come.
  static void abandon();

  static std::string version();
};

}  // namespace lockstep::mpi
