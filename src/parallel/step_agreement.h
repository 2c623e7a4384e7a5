#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/group.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::detail {

/// One rank's intent for the gradients of a DistributedOptimizer.
struct StepIntent {
  bool in_backward = false;      ///< a backward that exchanges its gradients runs
  bool has_joined = false;       ///< the optimizer steps, and this rank has joined a backward there
  bool has_local = false;        ///< the optimizer steps, and a gradient is not averaged yet
  bool has_lost_mean = false;    ///< a mean of the last exchange is no part of its gradient now
  std::uint64_t means = 0;       ///< digest of the means that count as untouched
  bool has_final_mean = false;   ///< and one of them must not be averaged again
  std::uint64_t edited = 0;      ///< digest of the gradients that were changed without a backward
  bool has_edited_mean = false;  ///< and one of them is a mean that must not be averaged again
  std::uint32_t step = 0;        ///< steps of this optimizer so far
};

/// The intents of all ranks together.
struct StepPlan {
  bool some_in_backward = false;  ///< the others join its exchange
  bool some_in_step = false;
  bool some_have_joined = false;
  bool some_have_local = false;
  bool some_have_lost_mean = false;
  bool some_have_final_mean = false;
  bool some_have_edited_mean = false;
  bool means_alike = true;   ///< all ranks hold the same means
  bool edited_alike = true;  ///< all ranks have changed the same gradients in the same way
};

/// The agreement with which every exchange of a DistributedOptimizer begins, in a backward and in
/// step(). A rank that runs no backward learns of the others' backward. No rank steps with
/// gradients that another rank wants to have averaged. One all_reduce of a few bytes.
class StepAgreement {
 public:
  explicit StepAgreement(const Group& group);

  /// Begins it; does not block.
  /// Ranks: all of the group.
  void begin(const StepIntent& own);
  /// Waits for all ranks.
  /// Throws: InvalidArgument, on every rank, when the ranks have made unequal numbers of steps.
  StepPlan end();

 private:
  Group group_;
  at::Tensor bytes_;
  Work work_;
  std::uint32_t step_ = 0;
};

}  // namespace lockstep::detail
