#pragma once

#include <optional>
#include <string>

namespace lockstep::inline v0_2 {

/// A process's place in its world, as a launcher other than `lockstep run` states it.
struct Launcher {
  enum class Kind {
    openmpi,   ///< OpenMPI's mpirun
    hydra,     ///< MPICH's mpiexec, and others that speak PMI
    torchrun,  ///< PyTorch's
    by_hand,   ///< RANK, WORLD_SIZE and the like, set by whomever
    srun       ///< SLURM's
  };

  Kind kind;
  int rank = 0;
  int size = 1;
  std::optional<int> local_size = {};  ///< ranks on this host, where it is told
  /// Identifies this world among others on this host; empty where only the process tree does.
  std::string job = {};

  /// The process of this host that started the ranks; 0 where that cannot be known. A script that
  /// sets the variables by hand may end before its ranks.
  long process() const;
  /// Whether OpenMPI's launcher ended before this process looked for it: the process has been
  /// handed to the system's first process, which is none of OpenMPI's.
  bool has_ended() const;
  /// "OpenMPI's mpirun", for messages.
  const char* name() const;
  /// Whether MPI knows the processes that it starts.
  bool starts_mpi() const { return kind != Kind::torchrun && kind != Kind::by_hand; }
  /// Whether all ranks are on this host.
  bool one_host() const { return local_size == size; }

  /// The launcher whose variables are set, the innermost of several. Throws: InvalidArgument when
  /// they are incomplete or contradict one another, showing them.
  static std::optional<Launcher> read();
};

}  // namespace lockstep
