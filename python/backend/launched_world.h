#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/membership.h"

namespace lockstep_torch {

/// Rank and number of ranks according to the launcher's variables, if the launcher starts MPI
/// processes; else nullopt.
std::optional<std::pair<int, int>> launched_by_mpi();

/// Whether this rank exchanges data with other hosts over MPI: the world of its launcher does, and
/// MPI has the same ranks as PyTorch.
/// size: number of ranks of the default group; 0 if it is unknown.
bool uses_mpi(int rank, int size);

/// The addresses by which other ranks may reach this process: those of its network interfaces, or
/// of LOCKSTEP_INTERFACE.
/// one_host: loopback only.
std::vector<std::string> own_addresses(bool one_host);

/// The world of all processes that the launcher has started. A process joins it at most once, and
/// leaves it when the process ends.
class LaunchedWorld {
 public:
  /// Joins the world in the first call. Ranks: all.
  /// Throws: lockstep::Error.
  static LaunchedWorld& join(std::chrono::milliseconds timeout);

  /// Its mutex is that of every group over MPI.
  const World& world() const { return world_; }
  bool on_one_host() const;

  /// Rank 0's text on every rank. Ranks: all; each passes its rank and number of ranks in PyTorch.
  /// Throws: c10::DistBackendError, on every rank, if these are others than in MPI on some rank.
  std::string from_rank_0(int rank, int size, const std::string& text) const;

 private:
  explicit LaunchedWorld(std::chrono::milliseconds timeout);

  World world_;
};

}  // namespace lockstep_torch
