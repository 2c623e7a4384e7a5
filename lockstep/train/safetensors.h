#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

/// The safetensors format: the length of a JSON header (8 bytes), the header, then the tensors'
/// values, all little-endian. Values f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool. What Lockstep writes
/// carries digests of the header and of every tensor, which are verified when it is read.
/// Source: https://github.com/huggingface/safetensors (the format)
namespace lockstep::safetensors {

/// What one file holds.
struct Content {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
  bool checked = false;  ///< whether the file had digests, and they were right
};

/// Replaces the file at once, when all of it is on disk; on an error the file that was there stays.
/// Throws: CheckpointError naming the file, and what the system answered or which tensor cannot be
/// stored.
void write(const std::filesystem::path& path, const Content& content);

/// Throws: CheckpointError naming file, tensor, what was found and what was expected.
Content read(const std::filesystem::path& path);

/// What bytes hold; file serves the error texts. The tensors have memory of their own.
/// Shapes: bytes [size] of uint8.
Content parse(const at::Tensor& bytes, std::string_view file);

}  // namespace lockstep::safetensors
