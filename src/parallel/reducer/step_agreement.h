#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/group.h"
#include "lockstep/work.h"
#include "parallel/agree.h"
#include "parallel/buckets/bucket_reducers.h"

namespace lockstep::inline v0_2::detail {

/// The state of one rank's gradients. The step agreement makes it the state of all ranks: the
/// maximum of each byte. So a flag is set if some rank has set it.
struct StepIntent {
  Compared<std::uint64_t> means{0};   ///< digest of the gradients that are GradientState::averaged
  Compared<std::uint64_t> edited{0};  ///< digest of the gradients that are GradientState::edited
  Compared<std::uint32_t> step{0};    ///< steps of this optimizer so far
  std::uint8_t in_backward = 0;       ///< in a backward: 1 + the product, else 0
  std::uint8_t in_step = 0;           ///< the same in step(), to take part in others' backward
  std::uint8_t has_followed = 0;      ///< this step() has taken part in the exchange of a backward
  std::uint8_t has_local = 0;         ///< a gradient is GradientState::local
  std::uint8_t has_lost_mean = 0;     ///< a gradient no longer contains the last mean
  std::uint8_t has_final_mean = 0;    ///< an averaged gradient must not be averaged again
  std::uint8_t has_edited_mean = 0;   ///< an edited gradient is a mean that must not be
  std::uint8_t padding = 0;

  /// That of the ranks in a backward. Where no rank runs one, part if some rank has it.
  Product product() const {
    const auto place = in_backward != 0 ? in_backward : in_step;
    return static_cast<Product>(place == 0 ? 0 : place - 1);
  }
};
static_assert(sizeof(StepIntent) == 48);

/// One all_reduce of a few bytes that begins every exchange of a DistributedOptimizer, in a
/// backward and in step(). A rank without a backward thereby takes part in the exchange of the
/// other ranks' backward. step() averages gradients if they are local on any rank.
class StepAgreement {
 public:
  explicit StepAgreement(const Group& group);

  static std::uint8_t place_of(Product product) {
    return static_cast<std::uint8_t>(1 + static_cast<int>(product));
  }

  /// Begins the all_reduce; does not block.
  /// Ranks: all of the group.
  void begin(const StepIntent& own);
  /// Waits for all ranks. The result is the same on every rank.
  /// Throws: InvalidArgument, on every rank, when the ranks have made unequal numbers of steps.
  StepIntent end();

 private:
  Group group_;
  at::Tensor bytes_;
  Work work_;
  std::uint32_t step_ = 0;
};

}  // namespace lockstep::detail
