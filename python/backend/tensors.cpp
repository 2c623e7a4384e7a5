#include "backend/tensors.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <tuple>

#include "backend/errors.h"
#include "group/tensors.h"

namespace lockstep_torch {

void expect_dense(const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined()) refuse(operation, "got an undefined tensor, expected a tensor of the CPU");
  if (!tensor.device().is_cpu()) {
    refuse(operation, c10::str("got a tensor of device ", tensor.device(),
                               ", expected a tensor of the CPU; call .cpu() first"));
  }
  if (tensor.layout() != at::kStrided) {
    refuse(operation, c10::str("got a tensor of layout ", tensor.layout(),
                               ", expected a dense tensor; call .to_dense() first"));
  }
  if (!lockstep::detail::has_values_in_memory(tensor))
    refuse(operation, lockstep::detail::without_values(tensor));
}

void expect_dense(const char* operation, const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) expect_dense(operation, tensor);
}

void expect_one_dtype(const char* operation, const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) refuse(operation, "got no tensor, expected a non-empty list");
  for (const auto& tensor : tensors) {
    if (tensor.scalar_type() == tensors.front().scalar_type()) continue;
    refuse(operation, c10::str("got tensors of the dtypes ", tensors.front().scalar_type(), " and ",
                               tensor.scalar_type(), ", expected one dtype"));
  }
}

void expect_alike(const char* operation, const std::vector<at::Tensor>& tensors) {
  expect_one_dtype(operation, tensors);
  for (const auto& tensor : tensors) {
    if (tensor.sizes() == tensors.front().sizes()) continue;
    refuse(operation, c10::str("got tensors of the shapes ", tensors.front().sizes(), " and ",
                               tensor.sizes(), ", expected one shape"));
  }
}

void expect_size(const char* operation, const char* what, std::size_t got, std::size_t expected) {
  if (got != expected) {
    refuse(operation, c10::str("got ", got, " ", what, ", expected ", expected));
  }
}

void expect_elements(const char* operation, const at::Tensor& larger, const at::Tensor& smaller,
                     int factor) {
  expect_one_dtype(operation, {larger, smaller});
  if (larger.numel() == smaller.numel() * factor) return;
  refuse(operation,
         c10::str("got tensors of ", larger.numel(), " and ", smaller.numel(),
                  " elements, expected ", smaller.numel() * factor, " and ", smaller.numel()));
}

at::Tensor contiguous_memory(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : at::empty(tensor.sizes(), tensor.options());
}

at::Tensor consecutive(const std::vector<at::Tensor>& tensors) {
  const auto& first = tensors.front();
  std::int64_t end = first.storage_offset();
  for (const auto& tensor : tensors) {
    if (!tensor.is_contiguous() || !tensor.is_alias_of(first) || tensor.storage_offset() != end) {
      return {};
    }
    end += tensor.numel();
  }
  return first.as_strided({end - first.storage_offset()}, {1});
}

at::Tensor apart_from(const at::Tensor& other, const at::Tensor& tensor) {
  return tensor.is_alias_of(other) ? tensor.clone() : tensor;
}

at::Tensor apart_from(const std::vector<at::Tensor>& outputs, std::size_t own, int rank,
                      const at::Tensor& input) {
  const auto begin = [](const at::Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& output = outputs[i];
    const bool gathers = bytes_of(input) < bytes_of(output);
    const auto& [part, whole] = gathers ? std::tie(input, output) : std::tie(output, input);
    const auto place = begin(whole) + static_cast<std::size_t>(rank) * bytes_of(part);
    if (i == own && begin(part) == place) continue;
    if (begin(part) < begin(whole) + bytes_of(whole) && begin(whole) < begin(part) + bytes_of(part))
      return input.clone();
  }
  return input;
}

void copy_back(const at::Tensor& memory, at::Tensor tensor) {
  if (!memory.is_same(tensor)) tensor.copy_(memory);
}

void unflatten(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  std::int64_t begin = 0;
  for (auto tensor : tensors) {
    const auto elements = flat.narrow(0, begin, tensor.numel());
    const bool is_own = tensor.is_contiguous() && elements.data_ptr() == tensor.data_ptr();
    if (!is_own) tensor.copy_(elements.view(tensor.sizes()));
    begin += tensor.numel();
  }
}

}  // namespace lockstep_torch
