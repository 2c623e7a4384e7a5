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

/// Ranks of the world that a launcher has started this process in; 0 if none has.
int world_size();

/// Runs fn as a rank of that world, over that backend.
/// Throws: as init(). InvalidArgument if the world has another number of ranks than the settings.
void run_as_rank(const Settings& settings, Backend backend, const RankFunction& fn);

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
