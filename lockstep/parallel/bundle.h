#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/work.h"
#include "lockstep/group.h"

namespace lockstep {

/// Tensors of any dtypes and strides that travel as one, through a buffer in the group's memory.
class Bundle {
 public:
  /// The tensors must have the same sizes and dtypes on every rank.
  Bundle(std::vector<at::Tensor> tensors, const Group& group);

  /// Begins to copy root's tensors to all ranks; end() completes it. Autograd does not notice.
  void begin_broadcast(int root);
  void end_broadcast();

 private:
  std::vector<at::Tensor> tensors_;
  Group group_;
  at::Tensor buffer_;               ///< bytes
  std::vector<at::Tensor> packed_;  ///< parts of the buffer, as the tensors are
  int root_ = 0;
  Work work_;
};

}  // namespace lockstep
