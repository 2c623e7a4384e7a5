#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/group.h"
#include "lockstep/work.h"

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
