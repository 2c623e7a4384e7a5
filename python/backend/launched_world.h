#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace lockstep_torch {

/// Rank and number of ranks according to the launcher's variables, if the launcher starts MPI
/// processes; else nullopt.
std::optional<std::pair<int, int>> launched_by_mpi();

/// The reason why this rank cannot exchange data with other hosts; empty if it can. Reasons: the
/// launcher starts no MPI processes, MPI numbers the ranks otherwise, or this build has no MPI.
/// size: number of ranks of the default group; 0 if it is unknown.
std::string why_no_mpi(int rank, int size);

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

  const std::shared_ptr<lockstep::Communicator>& communicator() const { return world_; }
  /// Of every group over MPI.
  const std::shared_ptr<std::mutex>& mutex() const { return mutex_; }
  bool on_one_host() const;
  /// The failure of the world, or nullopt.
  std::optional<std::string> failure() const;

  /// Rank 0's text on every rank. Ranks: all; each passes its rank and number of ranks in PyTorch.
  /// Throws: c10::DistBackendError, on every rank, if these are others than in MPI on some rank.
  std::string from_rank_0(int rank, int size, const std::string& text) const;

 private:
  explicit LaunchedWorld(std::chrono::milliseconds timeout);

  std::shared_ptr<lockstep::Communicator> world_;
  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
};

}  // namespace lockstep_torch
