#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/data/example.h>

#include <cstddef>
#include <string_view>

namespace lockstep::inline v0_2::detail {

/// The rows at the indices.
/// Shapes: data [size, …], targets [size, …].
/// Throws: DataError, with the name of the dataset, for an index that is not below size.
torch::data::Example<> select_rows(const at::Tensor& data, const at::Tensor& targets,
                                   c10::ArrayRef<std::size_t> indices, std::string_view dataset);

/// The images at the indices, with values 0 … 1, and their targets.
/// Shapes: images [size, …] of uint8, targets [size].
/// Throws: as select_rows().
torch::data::Example<> select(const at::Tensor& images, const at::Tensor& targets,
                              c10::ArrayRef<std::size_t> indices, std::string_view dataset);

}  // namespace lockstep::detail
