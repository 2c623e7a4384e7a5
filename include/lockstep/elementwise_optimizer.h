#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::inline v0_2 {

/// Interface of an optimizer whose update ranks can share. It updates each element independently of
/// all others, from the state of that element.
class ElementwiseOptimizer {
 public:
  /// Some elements of one parameter. Shapes: flat, of the same number of elements.
  struct Elements {
    at::Tensor values;
    at::Tensor gradient;
    at::Tensor memory;      ///< undefined where nothing is remembered
    bool is_first = false;  ///< the parameter was never updated: memory is to be filled
  };

  virtual ~ElementwiseOptimizer() = default;

  /// Whether the parameter is one of the optimizer's.
  virtual bool has(const at::Tensor& parameter) const = 0;

  /// The state of one of its parameters: a tensor of the parameter's sizes and strides, undefined
  /// before the first update. Null while the optimizer keeps no state.
  virtual at::Tensor* memory_of(const at::Tensor& parameter) = 0;

  /// Updates some elements of one of its parameters, in place, by the options of this moment.
  virtual void update(const at::Tensor& parameter, const Elements& elements) = 0;
};

}  // namespace lockstep
