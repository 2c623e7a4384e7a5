#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace lockstep::inline v0_2::detail {

/// The parameter's mean gradient as it is when it was computed with create_graph. The mean has no
/// graph: a backward that comes to it raises InvalidArgument, where it would otherwise take the
/// mean for a constant without a word. Shares memory with values.
at::Tensor without_graph(const at::Tensor& values, const std::string& parameter);

}  // namespace lockstep::detail
