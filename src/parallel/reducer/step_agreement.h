#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/group.h"
#include "lockstep/work.h"
#include "parallel/buckets/bucket_reducers.h"

namespace lockstep::inline v0_2::detail {

/// One rank's contribution to the step agreement: the state of its gradients.
struct StepIntent {
  bool in_backward = false;      ///< a backward runs; otherwise the rank is in step()
  bool has_followed = false;     ///< this step() has taken part in the exchange of a backward
  bool has_local = false;        ///< a gradient is GradientState::local
  bool has_lost_mean = false;    ///< a gradient no longer contains the last mean
  std::uint64_t means = 0;       ///< digest of the gradients that are GradientState::averaged
  bool has_final_mean = false;   ///< an averaged gradient must not be averaged again
  std::uint64_t edited = 0;      ///< digest of the gradients that are GradientState::edited
  bool has_edited_mean = false;  ///< an edited gradient is a mean that must not be averaged again
  Product product = Product::mean;
  std::uint32_t step = 0;  ///< steps of this optimizer so far
};

/// The result of the step agreement, the same on every rank.
struct StepPlan {
  bool some_in_backward = false;  ///< ranks in step() take part in the exchange of the backward
  bool some_in_step = false;
  bool some_have_followed = false;
  bool some_have_local = false;
  bool some_have_lost_mean = false;
  bool some_have_final_mean = false;
  bool some_have_edited_mean = false;
  /// That of the ranks in a backward. Where no rank runs one, part if some rank has it.
  Product product = Product::mean;
  bool means_alike = true;   ///< averaged gradients are equal on all ranks
  bool edited_alike = true;  ///< edited gradients are equal on all ranks
};

/// One all_reduce of a few bytes that begins every exchange of a DistributedOptimizer, in a
/// backward and in step(). A rank without a backward thereby takes part in the exchange of the
/// other ranks' backward. step() averages gradients if they are local on any rank.
class StepAgreement {
 public:
  explicit StepAgreement(const Group& group);

  /// Begins the all_reduce; does not block.
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
