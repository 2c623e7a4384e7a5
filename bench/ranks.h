#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/measured_library.h"
#include "bench/settings.h"
#include "core/environment.h"

namespace lockstep::bench {

using RankFunction = std::function<void(Transport&)>;

/// Runs fn on settings.ranks threads, each a rank of one host world, on cores of its own where
/// there are enough. Throws: what the first failing rank threw.
void run_threads(const Settings& settings, const RankFunction& fn);

/// Whether this process was started as a rank.
bool is_rank();

/// Ranks of the world that this process was started in, 0 if in none.
int world_size();

/// Runs fn as the rank that this process was started as.
/// Throws: InvalidArgument when the world has another number of ranks than the settings.
void run_as_rank(const Settings& settings, const RankFunction& fn);

/// Ranks of the world that an MPI's launcher started this process in, 0 if none did.
int mpi_world_size();

/// Runs fn as one of those ranks, over that backend; what is not said is as init() chooses.
/// Throws: InvalidArgument when the world has another number of ranks than the settings, or its
/// ranks are not all on one host while that backend is asked for; BackendUnavailable in a build
/// without MPI.
void run_over_mpi(const Settings& settings, Backend backend, const RankFunction& fn);

/// Starts this program settings.ranks times with these arguments, as `lockstep run` would.
/// Returns the job's exit code.
int run_processes(const Settings& settings, const std::vector<std::string>& arguments);

/// The program that measures tensors of devices, in the folder of this program. It is linked with
/// LibTorch. Empty if it is not there.
std::filesystem::path device_program();

/// Starts device_program() with these arguments: settings.ranks times, with LOCKSTEP_DEVICE=device,
/// or in place of this process if a launcher has started it as a rank.
/// Returns the job's exit code.
/// Throws: BackendUnavailable without device_program().
int run_device_program(const Settings& settings, const std::string& device,
                       const std::vector<std::string>& arguments);

}  // namespace lockstep::bench
