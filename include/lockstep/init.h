#pragma once

#include <c10/core/DeviceType.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/group.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2 {

struct InitOptions {
  std::optional<Backend> backend = {};  ///< default LOCKSTEP_BACKEND, else automatic
  /// The type of device that each rank trains on, with the index of its local rank. Default
  /// LOCKSTEP_DEVICE; else CUDA if every rank has a GPU and LibTorch is built for it, the CPU if no
  /// rank has one.
  /// Ranks: the same value on all.
  std::optional<at::DeviceType> device = {};
  std::optional<std::chrono::milliseconds> timeout =
      {};  ///< longest wait for other ranks; default LOCKSTEP_TIMEOUT, else 10 minutes
  /// Keep freed memory in this process instead of returning it to the kernel, as `lockstep run
  /// --freed-memory keep` does for its ranks.
  bool keep_freed_memory = false;
  /// Whether ranks flush denormals; default LOCKSTEP_FLUSH_DENORMALS, else true. It applies to the
  /// thread that calls init(), or to each thread of spawn(), to the OpenMP threads that compute for
  /// it, and to threads that these create later. docs/environment.md describes the effects.
  /// Ranks: the same value on all.
  std::optional<bool> flush_denormals = {};
};

/// Joins the world that this process belongs to and returns its group. The world is that of
/// `lockstep run`, mpirun, mpiexec, srun, torchrun or of variables that the user sets
/// (docs/environment.md). A process that was started alone is a world of one rank. Returns when all
/// ranks have called it. Ranks of one host exchange data through shared memory, whichever launcher
/// started them; hosts exchange data over MPI or TCP. Under a launcher other than `lockstep run`, a
/// rank uses an equal share of the host's cores as compute threads, unless it is bound to that
/// many cores or fewer, or OMP_NUM_THREADS is set.
/// Ranks: all, once in each process, and again after InvalidArgument for a device, where only
/// `device` counts.
/// Throws: InvalidArgument for a second call, for a call inside spawn(), for contradictory
/// environment variables, for a timeout that is not positive, if ranks disagree on denormals or
/// devices, or if a rank has no device of its own.
/// BackendUnavailable if this build cannot join the world. CommError and TimeoutError as a
/// collective does.
Group init(const InitOptions& options = {});

/// Options of join().
struct WorldOptions {
  /// Longest wait for other ranks; default LOCKSTEP_TIMEOUT, else 10 minutes.
  std::optional<std::chrono::milliseconds> timeout = {};
  /// Largest size of all tensors that each rank makes by Group::empty() in the world. Address space
  /// of this size is reserved when such a tensor is first made. Rank 0's value applies. 0: the
  /// memory of the machine, or less under a limit of memory or address space.
  /// Units: bytes.
  std::size_t heap_bytes = 0;
};

/// Joins a world of `size` ranks on this host, which find each other by the world's name, and
/// returns its group. No launcher is needed. Ranks are processes of one user, or threads. A process
/// may join any number of worlds, before init(), after it or without it. Returns when all ranks
/// have called it. A name is free again as soon as all ranks have joined.
///
/// Worlds are independent: a failure of one does not end another. A rank advances the operations of
/// a world only in calls that use that world, so wait for the operations of one world before
/// waiting in another.
/// Ranks: all of that world, each once, with the same name and size. All flush denormals or none.
/// Throws: InvalidArgument for an empty name, a rank or size out of range, a timeout that is not
/// positive, and if ranks disagree on denormals. TimeoutError naming the ranks that did not join.
/// CommError if ranks disagree on the size, if two pass the same rank, and if a rank ends before
/// all have joined. BackendUnavailable if this kernel cannot share memory.
Group join(const std::string& name, int rank, int size, const WorldOptions& options = {});

/// How many times the launcher has restarted this world after a failure (LOCKSTEP_RESTART_COUNT).
int restart_count();

/// Runs fn in n threads of this process and returns when all have returned. Each thread is a rank
/// of one world and uses an equal share of the cores as compute threads, unless OMP_NUM_THREADS is
/// set. spawn() cannot end a thread that hangs: it reports the ranks that have not returned on
/// stderr, once. It does so 10 s after the world failed or, without a failure, one timeout after
/// the first rank returned. The denormal mode of the calling thread does not change.
/// options.backend is ignored: thread ranks exchange data through the memory of the process. All
/// threads of a process share LibTorch's default generator, also those of concurrent spawn() calls.
/// Throws: the exception of the rank that failed first. InvalidArgument inside another spawn(),
/// for another n than 1 to 512, and for a timeout that is not positive. CommError if the process
/// cannot start another thread.
void spawn(int n, const std::function<void(Group)>& fn, const InitOptions& options = {});

/// Records the error that ends this process, so that the launcher and the other ranks name it as
/// the cause. Under `lockstep run`, and in a world of one host, the error is stored in the world's
/// memory. Under torchrun it is written as JSON to TORCHELASTIC_ERROR_FILE. Call it in main() with
/// an error that main() catches; run_main() does so. After init(), uncaught errors are recorded
/// automatically. Only the first error of a process is recorded.
/// Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py
void record_error(const std::exception& error) noexcept;

/// How run_main() makes its ranks.
struct RunOptions {
  InitOptions init = {};
  int threads =
      0;  ///< number of thread ranks, started by spawn(); 0 joins the launcher's world by init()
  /// The error message about the command line; empty if the command line is valid. The startup
  /// reporter prints the text to stderr unchanged. run_main() then returns 2 without a call of fn,
  /// on every rank that has a usage error. No rank returns before the text is printed, because some
  /// launchers end all ranks with the first that fails. A rank that cannot join the world returns
  /// after 5 s.
  std::string usage_error = {};
};

/// The body of main(): joins the world, runs fn on every rank, and returns the exit code: 0, 1
/// after an error, or 2 after a usage error. An error of fn is recorded by record_error() and ends
/// the world. One rank prints the error to stderr as "program: text", where program is the file
/// name in argv[0]. If init() fails, every rank prints its own error, the startup reporter first.
/// fn must throw only types that derive from std::exception.
///
///     int main(int argc, char** argv) { return lockstep::run_main(argc, argv, train); }
///
/// Ranks: all, each in its main().
int run_main(int argc, const char* const* argv, const std::function<void(const Group&)>& fn,
             const RunOptions& options = {});

/// Whether this process should print messages that every rank would print before init(), such as a
/// usage error. True on rank 0 according to the launcher's variables, and in a process without a
/// launcher.
bool is_startup_reporter();

}  // namespace lockstep
