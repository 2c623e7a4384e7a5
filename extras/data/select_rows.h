#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/ArrayRef.h>
#include <torch/data/example.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

/// The rows at the indices.
/// Shapes: data [size, …], targets [size, …].
/// Throws: DataError, with the name of the dataset, for an index that is not below size.
inline torch::data::Example<> select_rows(const at::Tensor& data, const at::Tensor& targets,
                                          c10::ArrayRef<std::size_t> indices,
                                          std::string_view dataset) {
  const auto size = static_cast<std::size_t>(data.size(0));
  at::Tensor wanted = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::int64_t* const out = wanted.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= size)
      throw DataError(concat(dataset, ": got index ", indices[i], ", expected one below ", size),
                      {.operation = std::string(dataset)});
    out[i] = static_cast<std::int64_t>(indices[i]);
  }
  return {data.index_select(0, wanted), targets.index_select(0, wanted)};
}

/// The images at the indices, with values 0 … 1, and their targets.
/// Shapes: images [size, …] of uint8, targets [size].
/// Throws: as select_rows().
inline torch::data::Example<> select(const at::Tensor& images, const at::Tensor& targets,
                                     c10::ArrayRef<std::size_t> indices, std::string_view dataset) {
  auto [chosen, classes] = select_rows(images, targets, indices, dataset);
  return {chosen.to(at::kFloat).div_(255), classes};
}

}  // namespace lockstep::detail
