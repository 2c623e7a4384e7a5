#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace lockstep {

/// The colour images of CIFAR-10, held in memory, from the files of its binary version. A dataset
/// of LibTorch's data loader that gives whole batches, so no Stack is needed. Shapes: batch.data
/// [B, 3, 32, 32] of float in 0 … 1, batch.target [B] of int64 in 0 … 9. Source:
/// https://www.cs.toronto.edu/~kriz/cifar.html (the format)
class Cifar10 : public torch::data::datasets::BatchDataset<Cifar10, torch::data::Example<>> {
 public:
  enum class Split : std::uint8_t { train, test };

  static constexpr std::array<std::string_view, 10> class_names{
      "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};

  /// Reads data_batch_1.bin and those of 2 to 5 that follow it, or test_batch.bin, from the folder
  /// root. A file may hold any number of images.
  /// Throws: DataError naming file, offset, expected and found when one is missing, short or
  /// corrupt.
  explicit Cifar10(const std::filesystem::path& root, Split split = Split::train);
  /// Images that were come by in another way.
  /// Shapes: [size, 3, 32, 32] of uint8, and [size] of int64 in 0 … 9.
  /// Throws: InvalidArgument for others.
  Cifar10(at::Tensor images, at::Tensor targets);

  /// Throws: DataError for an index that is not below size().
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override;

  /// All images.
  /// Shapes: [size, 3, 32, 32] of uint8, and [size] of int64.
  const at::Tensor& images() const { return images_; }
  const at::Tensor& targets() const { return targets_; }

 private:
  at::Tensor images_;
  at::Tensor targets_;
};

/// Images of Cifar10's form for who has none: each shows one of ten shapes, its class, of any
/// colour and size, at any place, over noise. Easy to learn, and the same on every platform.
Cifar10 coloured_shapes(std::size_t count, std::uint64_t seed);

}  // namespace lockstep
