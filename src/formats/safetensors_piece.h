#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "formats/safetensors_header.h"
#include "lockstep/model_files.h"

namespace lockstep::inline v0_2::safetensors {

/// A tensor on its way into a file.
struct Piece {
  Entry entry;
  at::Tensor values;  ///< contiguous, on the CPU
};

/// All tensors of content, in file order, with their digests.
/// Throws: CheckpointError naming file and tensor.
std::vector<Piece> pieces_of(const Content& content, std::string_view file);

/// Wide dtypes come first, so that every tensor is aligned to its dtype.
bool before_in_file(const Entry& a, const Entry& b);

std::span<const std::byte> bytes_of(const at::Tensor& tensor);
std::span<std::byte> writable_bytes_of(const at::Tensor& tensor);

}  // namespace lockstep::safetensors
