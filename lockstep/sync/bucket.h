#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/group.h"

namespace lockstep {

/// Parameters whose gradients travel together: one flat tensor in the group's memory, in which each
/// parameter has a slice.
class Bucket {
 public:
  /// One parameter's part of the flat tensor.
  struct Slice {
    std::string name;      ///< of the parameter, as the module names it
    at::Tensor parameter;  ///< the parameter itself
    std::size_t offset;    ///< first element within the flat tensor
    /// The slice in the parameter's sizes. Dense parameters keep their strides, others are row
    /// major. It shares the flat tensor's memory, but is no view for autograd.
    at::Tensor values = {};
  };

  /// A bucket of numel elements, all zero. Every slice must lie within it; values are made here.
  /// Throws: CommError when the machine has not that much memory.
  Bucket(std::size_t index, std::size_t numel, at::ScalarType dtype, std::vector<Slice> slices,
         const Group& group);

  /// Position of this bucket in the order in which buckets are exchanged.
  std::size_t index() const { return index_; }
  /// All slices and the zeros between them. Shapes: flat.
  const at::Tensor& values() const { return values_; }
  std::span<const Slice> slices() const { return slices_; }
  /// Whose memory it lies in, and whose ranks have one like it.
  const Group& group() const { return group_; }

 private:
  Group group_;
  std::size_t index_;
  at::Tensor values_;
  std::vector<Slice> slices_;
};

namespace detail {
/// A tensor of the parameter's sizes over flat's memory from an element on: its strides where it is
/// dense, else row major. Made from the storage: a view that autograd knows of could be neither a
/// parameter nor a gradient, as zero_grad() detaches in place.
at::Tensor alias(const at::Tensor& flat, std::size_t offset, const at::Tensor& parameter);
}  // namespace detail

}  // namespace lockstep
