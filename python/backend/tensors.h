#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace lockstep_torch {

inline std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.nbytes());
}
inline std::size_t count_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

/// Throws: std::invalid_argument unless the tensor is a dense tensor of the CPU.
void expect_dense(const char* operation, const at::Tensor& tensor);
void expect_dense(const char* operation, const std::vector<at::Tensor>& tensors);
/// Throws: std::invalid_argument unless there is a tensor and all have one dtype.
void expect_one_dtype(const char* operation, const std::vector<at::Tensor>& tensors);
/// The same, and one shape.
void expect_alike(const char* operation, const std::vector<at::Tensor>& tensors);
/// Throws: std::invalid_argument unless the list has this size. what: "input tensors".
void expect_size(const char* operation, const char* what, std::size_t got, std::size_t expected);
/// Throws: std::invalid_argument unless both tensors have the same number of elements times factor
/// and one dtype.
void expect_elements(const char* operation, const at::Tensor& larger, const at::Tensor& smaller,
                     int factor);

/// The tensor, or contiguous memory of its shape.
at::Tensor contiguous_memory(const at::Tensor& tensor);
/// The memory of contiguous tensors that follow one another in one storage, as the parts of one
/// tensor do; undefined for others.
at::Tensor consecutive(const std::vector<at::Tensor>& tensors);
/// The tensor, or a copy of it if its storage is that of the other tensor.
at::Tensor apart_from(const at::Tensor& other, const at::Tensor& tensor);
/// The contiguous input number `own`, or a copy of it if it overlaps an output. It may be this
/// rank's part of its own output, or have its own output as this rank's part.
at::Tensor apart_from(const std::vector<at::Tensor>& outputs, std::size_t own, int rank,
                      const at::Tensor& input);
/// Copies what contiguous_memory() returned to the tensor, unless it is the tensor.
void copy_back(const at::Tensor& memory, at::Tensor tensor);
/// Copies consecutive elements into the tensors, except those whose memory the elements are in.
void unflatten(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);

}  // namespace lockstep_torch
