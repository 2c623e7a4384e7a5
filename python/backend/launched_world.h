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

/// The world of all processes that the launcher has started. A process joins it in the first call,
/// and leaves it when the process ends. Its mutex is that of every group over MPI. Ranks: all.
/// Throws: lockstep::Error.
const World& launched_world(std::chrono::milliseconds timeout);

/// The addresses by which other ranks of the launched world may reach this process: those of its
/// network interfaces, or of LOCKSTEP_INTERFACE. Of a world on one host, loopback only.
std::vector<std::string> own_addresses(const World& launched);

/// Rank 0's text on every rank of the launched world. Ranks: all.
/// rank, size: those of PyTorch.
/// Throws: c10::DistBackendError, on every rank, if these are others than in MPI on some rank.
std::string from_rank_0(const World& launched, int rank, int size, const std::string& text);

}  // namespace lockstep_torch
