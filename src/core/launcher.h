#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::inline v0_2 {

/// Rank and world size of a process, from the environment variables of a launcher other than
/// `lockstep run`.
struct Launcher {
  enum class Kind {
    openmpi,   ///< OpenMPI's mpirun
    hydra,     ///< MPICH's mpiexec, and others with PMI variables
    torchrun,  ///< PyTorch's torchrun
    by_hand,   ///< RANK, WORLD_SIZE and so on, set by the user
    srun       ///< SLURM's
  };

  Kind kind;
  int rank = 0;
  int size = 1;
  std::optional<int> local_size = {};  ///< number of ranks on this host, if known
  /// Whether local_size follows from a loopback MASTER_ADDR only. Another host may have another
  /// MASTER_ADDR, as the other pods of a PyTorchJob do.
  bool local_size_is_guess = false;
  /// Identifies this world among others on this host; empty if only the process tree does.
  std::string job = {};

  /// The pid of the launcher's process on this host; 0 if unknown. It is unknown for variables that
  /// a user sets, because the script that starts the ranks may end before them.
  long process() const;
  /// Whether OpenMPI's launcher has ended already: this process is then a child of process 1, which
  /// is not a launcher.
  bool has_ended() const;
  /// "OpenMPI's mpirun", for error texts.
  std::string_view name() const;
  /// Whether the processes that it starts are MPI processes.
  bool starts_mpi() const;
  /// Whether all ranks are on this host for certain.
  bool one_host() const { return local_size == size && !local_size_is_guess; }

  /// The launcher whose variables are set; of several nested ones, the innermost.
  /// Throws: InvalidArgument if variables are incomplete or contradict one another. The text shows
  /// them.
  static std::optional<Launcher> read();
};

/// "node07" of SLURM's "node[07-09,11],other"; another address as it is.
std::string first_host(const std::string& list);

}  // namespace lockstep
