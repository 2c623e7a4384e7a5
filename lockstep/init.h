#pragma once

#include <chrono>
#include <optional>

#include "lockstep/core/environment.h"
#include "lockstep/group.h"

namespace lockstep {

struct InitOptions {
  std::optional<Backend> backend = {};  ///< default LOCKSTEP_BACKEND, else automatic
  std::optional<std::chrono::milliseconds> timeout =
      {};  ///< longest wait; default LOCKSTEP_TIMEOUT, else 10 minutes
  bool keep_pages =
      false;  ///< keep freed memory in this process instead of returning it to the kernel
};

/// The world that this process belongs to: that of `lockstep run`, mpirun, mpiexec, srun, torchrun
/// or hand-made variables (docs/environment.md), or a world of one when started alone. Every rank
/// calls it once; returns when all have. Ranks of one host exchange through its memory, whoever
/// started them; those of several over MPI between hosts. Ranks of other launchers than `lockstep
/// run` that are not bound to cores take their share of them as compute threads, unless
/// OMP_NUM_THREADS says otherwise. Throws: InvalidArgument when called again, inside spawn(), or
/// when the environment contradicts itself; BackendUnavailable when this build cannot join the
/// world; CommError and TimeoutError as a collective does.
Group init(const InitOptions& options = {});

}  // namespace lockstep
