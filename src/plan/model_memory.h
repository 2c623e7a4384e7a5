#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "plan/model.h"

namespace lockstep::inline v0_2::plan {

/// The tensors of which each rank of the world keeps a part instead of all.
/// Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter
/// Models, 2020.
enum class Shard {
  none,
  optimizer,  ///< the optimizer's state (ZeRO-1)
  gradients   ///< the optimizer's state and the averaged gradients (ZeRO-2)
};

/// "none", "optimizer" or "gradients".
std::string_view name(Shard shard);
/// Throws: InvalidArgument listing the names.
Shard parse_shard(std::string_view text);

/// Elements of optimizer state for each parameter, of an optimizer of torch::optim by its name:
/// "sgd" 0, "momentum", "rmsprop" and "adagrad" 1, "adam" and "adamw" 2, "amsgrad" 3.
/// Throws: InvalidArgument listing the names.
int state_tensors(std::string_view optimizer);

/// How a world of equal hosts keeps a model.
struct Keeping {
  Shard shard = Shard::none;
  bool share_memory = false;  ///< one copy of parameters and state for the ranks of a host
  int state_tensors = 0;
  int nodes = 1;
  int ranks_per_node = 1;
};

/// Memory of float32 parameters, and of what belongs to them. Units: bytes.
struct ModelMemory {
  double parameters = 0;  ///< of one rank
  double gradients = 0;   ///< of one rank
  double state = 0;       ///< of one rank
  double shared = 0;      ///< of a host, beside those of its ranks

  double of_rank() const { return parameters + gradients + state; }
  double of_host(int ranks) const { return shared + ranks * of_rank(); }
};

/// Memory for each parameter. docs/plan.md has the table.
/// Throws: InvalidArgument for shared memory together with sharding.
ModelMemory bytes_per_parameter(const Keeping& keeping);

/// The largest number of parameters whose memory fits into a host, beside other_bytes of each rank.
double largest_model(const Keeping& keeping, double host_bytes, double other_bytes);

}  // namespace lockstep::plan
