#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <tuple>

namespace c10 {
class OperatorHandle;
}

/// Kernels of the simulated device, for registration.
namespace lockstep::simulation::operators {

using torch::jit::Stack;

void fallback(const c10::OperatorHandle& op, Stack* stack);
void convolution(const c10::OperatorHandle& op, Stack* stack);
void convolution_backward(const c10::OperatorHandle& op, Stack* stack);
at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format);
at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pinned);
at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset);
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size);
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride);
at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset,
                        c10::SymIntArrayRef size, c10::SymIntArrayRef stride);
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source);
at::Tensor& set_empty(at::Tensor& self);
const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat> format);
at::Tensor& copy(at::Tensor& self, const at::Tensor& from, bool non_blocking);
at::Scalar item(const at::Tensor& self);
void record_stream(at::Tensor& self, at::Stream stream);
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train);
/// Lets Module::to() move a parameter from and to the device, as it does for CUDA.
bool may_share_data(const at::Tensor& self, const at::Tensor& from);
std::int64_t attention_choice(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const std::optional<at::Tensor>& mask,
                              double dropout, bool causal, std::optional<double> scale,
                              bool grouped);

}  // namespace lockstep::simulation::operators
