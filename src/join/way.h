#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/environment.h"
#include "core/launcher.h"
#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// How a process joins its world.
enum class Way {
  alone,           ///< no other rank
  launched,        ///< `lockstep run` on one host: shared memory
  launched_hosts,  ///< `lockstep run` on several hosts: over TCP or UCX
  one_host,        ///< another launcher, whose ranks are all on this host: shared memory
  messages,        ///< another launcher: over TCP or UCX
  mpi
};

/// The way of a process with this environment.
/// Throws: as init(), if the environment is incomplete or the backend does not suit its launcher.
Way way_to_join(const Environment& environment, Backend backend);

/// "init: started by srun as rank 0 of 2", the beginning of error texts.
std::string started_by(const Launcher& launcher);

/// The host and port at which rank 0 of Way::messages listens, or at which torchrun has its store.
/// Throws: InvalidArgument naming the variables if they are not known, and for srun without a
/// secret.
std::pair<std::string, std::uint16_t> place_of_rank_0(const Launcher& launcher);

}  // namespace lockstep::detail
