#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <string_view>
#include <typeinfo>

#include "lockstep/distributed_optimizer.h"

namespace lockstep::inline v0_2 {

/// How a fused optimizer updates a parameter of bfloat16 or float16. Except with `nearest`, it
/// computes the update in float32. Parameters of other dtypes are not affected.
enum class LowPrecision {
  /// As torch.optim does: parameter and state are rounded to nearest, so updates below half a unit
  /// of a parameter's last place are lost.
  nearest,
  /// Keeps a float32 copy of the parameter, and the state in float32. The parameter is the copy,
  /// rounded. A value that the program writes into the parameter replaces that of the copy.
  master,
  /// For bfloat16. Keeps no copy. Parameter and state are rounded up or down at random, so that
  /// their expected values are exact. The random numbers follow from the number of the step, the
  /// place of the parameter in the optimizer and the element, so all ranks and resumed runs have
  /// the same.
  stochastic,
  /// For bfloat16. Keeps the rounding error of the parameter in bfloat16 (Kahan summation). The
  /// state is rounded as with `stochastic`.
  kahan
};

/// "nearest", "master", "stochastic" or "kahan".
std::string_view name(LowPrecision mode);
/// Throws: InvalidArgument for any other text.
LowPrecision parse_low_precision(std::string_view text);

/// The part of a fused optimizer that does not depend on its class. Checkpoints and optimizer files
/// know the optimizer by it.
class LowPrecisionOptimizer : public ElementwiseOptimizer {
 public:
  LowPrecision low_precision() const { return low_precision_; }

  /// The class of LibTorch whose options and state the optimizer has. That of the optimizer itself
  /// for a class that derives from a fused one.
  virtual const std::type_info& libtorch_class() const = 0;

  /// Whether the optimizer updates this parameter as low_precision() says, and not as nearest.
  bool computes_in_float32(const at::Tensor& parameter) const;
  /// The dtype of the state of a parameter.
  at::ScalarType state_dtype(const at::Tensor& parameter) const;

  /// Throws: InvalidArgument unless low_precision() is nearest.
  void check_shareable() const override;

 protected:
  LowPrecision low_precision_ = LowPrecision::nearest;
};

}  // namespace lockstep
