#pragma once

#include <torch/torch.h>

#include <memory>

#include "lockstep/checkpoint.h"
#include "lockstep/data_parallel_options.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/group.h"
#include "tests/random_programs/program.h"
#include "tests/random_programs/rank.h"

namespace lockstep::random_programs {

/// Either front end.
class Wrapper {
 public:
  virtual ~Wrapper() = default;
  virtual at::Tensor forward(const at::Tensor& x, Mask layers) = 0;
  virtual NoSync no_sync() const = 0;
  virtual void weight(double samples) = 0;
  virtual Stateful stateful() = 0;
  virtual DistributedOptimizer* optimizer() { return nullptr; }
};

/// Whether the ranks of this group share one copy of the unit's parameters.
bool is_shared(const Unit& unit, const Group& group);

std::unique_ptr<Wrapper> wrap(const Unit& unit, const Rank::Holding& holding, const Group& group);

/// A FusedSgd instead of an SGD, or a FusedAdam instead of an Adam.
void fuse(std::unique_ptr<torch::optim::Optimizer>& optimizer);

}  // namespace lockstep::random_programs
