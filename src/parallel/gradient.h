#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "lockstep/exchange.h"

namespace lockstep::inline v0_2::detail {

/// Throws InvalidArgument about a parameter.
[[noreturn]] void refuse(const std::string& name, std::string_view why);

/// Whether a gradient is the slice: Module::zero_grad(false) puts another tensor over its memory.
bool lies_in(const at::Tensor& gradient, const at::Tensor& values);

/// Throws: InvalidArgument when the gradient cannot be copied to the slice.
void expect_like(const at::Tensor& gradient, const Bucket::Slice& slice);

}  // namespace lockstep::detail
