#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/group.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

struct InitOptions {
  std::optional<Backend> backend = {};  ///< default LOCKSTEP_BACKEND, else automatic
  std::optional<std::chrono::milliseconds> timeout =
      {};  ///< longest wait; default LOCKSTEP_TIMEOUT, else 10 minutes
  /// Keep freed memory in this process instead of returning it to the kernel, as `lockstep run
  /// --freed-memory keep` does for its ranks.
  bool keep_freed_memory = false;
  /// Whether ranks flush denormals, the same on all; default LOCKSTEP_FLUSH_DENORMALS, else true.
  /// It holds for the calling thread, or spawn()'s, for OpenMP's threads that compute for it, and
  /// for all threads that these create later. docs/environment.md says what it changes.
  std::optional<bool> flush_denormals = {};
};

/// The world that this process belongs to: that of `lockstep run`, mpirun, mpiexec, srun, torchrun
/// or hand-made variables (docs/environment.md), or a world of one when started alone. Every rank
/// calls it once; returns when all have. Ranks of one host exchange through its memory, whoever
/// started them; those of several over MPI between hosts. Ranks of other launchers than `lockstep
/// run` that are not bound to cores take their share of them as compute threads, unless
/// OMP_NUM_THREADS says otherwise. Throws: InvalidArgument when called again, inside spawn(), when
/// the environment contradicts itself, when ranks treat denormals differently, or for a timeout
/// that is not positive; BackendUnavailable when this build cannot join the world; CommError and
/// TimeoutError as a collective does.
Group init(const InitOptions& options = {});

/// How often the launcher has started this world again after a failure: LOCKSTEP_RESTART_COUNT.
int restart_count();

/// Runs fn in n threads of this process, each a rank of one world; returns when all have returned.
/// Each thread gets its share of the cores as compute threads, unless OMP_NUM_THREADS says
/// otherwise. A thread that hangs cannot be ended: spawn() then reports on stderr, once, the ranks
/// that have not returned. It reports ten seconds after the world failed or, without a failure, a
/// timeout after the first rank returned. The ranks' denormal mode changes nothing in the calling
/// thread.
/// The options' backend is not used: threads of one process exchange through its memory.
/// Throws: what the first failing rank threw; InvalidArgument inside another spawn() and for a
/// timeout that is not positive; CommError when the process may start no more threads.
void spawn(int n, const std::function<void(Group)>& fn, const InitOptions& options = {});

/// Records the error that ends this process, so that the launcher and the other ranks name it as
/// the cause. Under `lockstep run` it is written to the file of LOCKSTEP_ERROR_FD, under torchrun
/// as JSON to TORCHELASTIC_ERROR_FILE. A world of one host also keeps it in its memory. main()
/// calls record_error() with an error that it catches. From init() on, an uncaught error is
/// recorded automatically. The first counts.
/// Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py
void record_error(const std::exception& error) noexcept;

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
