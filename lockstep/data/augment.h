#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace lockstep {

/// How images are varied.
struct AugmentOptions {
  std::uint64_t seed = 0;
  int pad = 4;       ///< pixels added on each side by mirroring, before a crop to the old size
  bool flip = true;  ///< left to right, every other time
};

/// Images varied one by one: padded by mirroring, edge included, cropped at random to their old
/// size, flipped at random. What becomes of an image is decided by (seed, epoch, index) alone.
/// Shapes: images [B, C, H, W] of float, an index for each of B; the result is the same.
/// Throws: InvalidArgument for other tensors, or a pad that is negative or larger than an image.
/// Source: the augmentation of SINGA's CNN examples
at::Tensor augment(const at::Tensor& images, c10::ArrayRef<std::size_t> indices,
                   std::uint64_t epoch, const AugmentOptions& options);

/// A dataset whose images are varied as they are read, in a loader's workers too.
///
/// Copies share the epoch, since LibTorch's data loader works on copies: set_epoch() reaches them.
template <class D>
class Augmented : public torch::data::datasets::BatchDataset<Augmented<D>, torch::data::Example<>> {
 public:
  explicit Augmented(D dataset, AugmentOptions options = {})
      : dataset_(std::move(dataset)), options_(options) {}

  /// To be called before each pass; otherwise all are alike.
  void set_epoch(std::uint64_t epoch) { *epoch_ = epoch; }

  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override {
    auto batch = dataset_.get_batch(indices);
    return {augment(batch.data, indices, *epoch_, options_), std::move(batch.target)};
  }
  std::optional<std::size_t> size() const override { return dataset_.size(); }

 private:
  D dataset_;
  AugmentOptions options_;
  std::shared_ptr<std::atomic<std::uint64_t>> epoch_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace lockstep
