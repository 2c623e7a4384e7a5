#pragma once

#include <torch/optim/sgd.h>

namespace lockstep {

/// torch::optim::SGD whose step reads and writes each parameter once, by the kernel that PyTorch's
/// `SGD(…, fused=True)` uses. The same options, state and checkpoints as SGD; results differ by
/// rounding only.
/// Parameters or gradients that the kernel cannot take (sparse, with holes, of unlike strides) are
/// stepped as SGD does.
class FusedSgd : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;

  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  bool fits() const;
  void step_group(torch::optim::OptimizerParamGroup& group);
};

}  // namespace lockstep
