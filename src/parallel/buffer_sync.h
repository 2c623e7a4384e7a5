#pragma once

#include <vector>

#include "lockstep/broadcast_parameters.h"
#include "lockstep/data_parallel_options.h"
#include "lockstep/group.h"
#include "parallel/bundle.h"
#include "parallel/model_state.h"

namespace lockstep::inline v0_2::detail {

/// Keeps the buffers of replicas together, by a policy.
class BufferSync {
 public:
  /// Throws: CommError when the machine has not the memory.
  BufferSync(const std::vector<NamedTensor>& buffers, BufferPolicy policy, const Group& group);

  /// Ranks: all of the group. end() completes what begin() began.
  void begin();
  void end();

 private:
  std::vector<Bundle> averaged_;    ///< one for each dtype
  std::vector<Bundle> from_rank0_;  ///< one, or none
};

}  // namespace lockstep::detail
