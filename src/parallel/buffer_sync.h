#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/data_parallel_options.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/group.h"
#include "lockstep/work.h"
#include "parallel/replicated_model.h"

namespace lockstep::inline v0_2 {

/// Tensors of any dtypes and strides that are exchanged as one, through a buffer in the group's
/// memory. Autograd does not notice that they change.
class Bundle {
 public:
  /// The tensors must have the same sizes and dtypes on every rank.
  Bundle(std::vector<at::Tensor> tensors, const Group& group);

  /// Begins to copy root's tensors to all ranks.
  void begin_broadcast(int root);
  /// Begins to give all ranks the mean. The tensors must be of one floating dtype.
  void begin_average();
  /// Completes what was begun.
  void end();

 private:
  void pack();

  std::vector<at::Tensor> tensors_;
  Group group_;
  at::Tensor buffer_;               ///< bytes
  std::vector<at::Tensor> packed_;  ///< parts of the buffer, as the tensors are
  bool changes_ = false;            ///< whether what was begun changes this rank's tensors
  Work work_;
};

}  // namespace lockstep

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
