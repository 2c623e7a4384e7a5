#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launch/plan.h"

namespace lockstep::inline v0_2::launch {

/// The user's options about nodes: the launchers of one job, one a host.
struct NodeOptions {
  std::optional<int> count = {};   ///< --nnodes
  std::optional<int> number = {};  ///< --node-rank
  std::string master = {};         ///< --master: HOST or HOST:PORT
  bool standalone = false;         ///< a world of this host, whatever the environment says
};

/// The place of this launcher, from the options, and from the variables of torchrun, Kubernetes'
/// operators and SLURM where an option is missing.
/// Throws: InvalidArgument naming the variables or options if they describe several nodes, but not
/// this launcher's place among them.
NodePlace find_place(const NodeOptions& options, const Variables& environment);

/// The number of ranks that the environment gives each node, as a value of -n; empty if none.
std::string ranks_of_environment(const Variables& environment);

}  // namespace lockstep::launch
