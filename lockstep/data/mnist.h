#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep {

/// The handwritten digits of MNIST, held in memory, from its four IDX files, each plain or
/// compressed (.gz). A dataset of LibTorch's data loader that gives whole batches, so no Stack is
/// needed.
/// Shapes: batch.data [B, 1, 28, 28] of float in 0 … 1, batch.target [B] of int64 in 0 … 9.
/// Source: http://yann.lecun.com/exdb/mnist/ (the format)
class Mnist : public torch::data::datasets::BatchDataset<Mnist, torch::data::Example<>> {
 public:
  enum class Split : std::uint8_t { train, test };

  /// Reads {train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte, or the same with .gz, from the
  /// folder root.
  /// Throws: DataError naming file, offset, expected and found when one is missing, short, corrupt
  /// or of another kind.
  explicit Mnist(const std::filesystem::path& root, Split split = Split::train);

  /// Throws: DataError for an index that is not below size().
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  /// One digit.
  /// Shapes: data [1, 28, 28], target [].
  torch::data::Example<> get(std::size_t index);
  std::optional<std::size_t> size() const override;

  /// All digits as read.
  /// Shapes: [size, 1, 28, 28] of uint8, and [size] of int64.
  const at::Tensor& images() const { return images_; }
  const at::Tensor& targets() const { return targets_; }

 private:
  at::Tensor images_;
  at::Tensor targets_;
};

}  // namespace lockstep
