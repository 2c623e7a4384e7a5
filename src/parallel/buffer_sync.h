#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/data_parallel_options.h"
#include "lockstep/distributed_optimizer.h"
#include "lockstep/group.h"
#include "lockstep/work.h"
#include "parallel/replicated_model.h"

namespace lockstep::inline v0_2 {

/// Tensors of any dtypes and strides that one collective exchanges, through a buffer in the group's
/// memory. Autograd does not track their changes.
class CoalescedTensors {
 public:
  /// The tensors must have the same sizes and dtypes on every rank.
  CoalescedTensors(std::vector<at::Tensor> tensors, const Group& group);

  /// Begins a broadcast of root's tensors.
  void begin_broadcast(int root);
  /// Begins to average the tensors over ranks. They must be of one floating dtype.
  void begin_average();
  /// Completes the broadcast or the average.
  void end();

 private:
  void pack();

  std::vector<at::Tensor> tensors_;
  Group group_;
  at::Tensor buffer_;               ///< bytes
  std::vector<at::Tensor> packed_;  ///< parts of the buffer with the tensors' dtypes and sizes
  bool is_written_ = false;         ///< end() writes this rank's tensors
  Work work_;
};

}  // namespace lockstep

namespace lockstep::inline v0_2::detail {

/// Synchronises the buffers of a replicated model by a policy.
class BufferSync {
 public:
  /// Throws: CommError when memory is short.
  BufferSync(const std::vector<NamedTensor>& buffers, BufferPolicy policy, const Group& group);

  /// end() waits for the collectives that begin() has issued. Ranks: all of the group.
  void begin();
  void end();

 private:
  std::vector<CoalescedTensors> averaged_;    ///< one for each dtype
  std::vector<CoalescedTensors> from_rank0_;  ///< one, or none
};

}  // namespace lockstep::detail
