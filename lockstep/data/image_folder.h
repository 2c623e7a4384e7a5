#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/image_crop.h"

namespace lockstep {

struct ImageFolderOptions {
  std::int64_t size = 0;  ///< height and width to give; 0 as stored, when all are of one size
  ImageCrop crop = ImageCrop::centre;
  double centre = 0.875;   ///< with ImageCrop::centre, the part of the shorter side that is shown
  std::uint64_t seed = 0;  ///< with ImageCrop::random
};

/// The images of a folder with a folder for each class, as torchvision's ImageFolder: classes and
/// files are numbered in the order of their names; what is called .jpg, .jpeg or .png, in either
/// case, is an image; names that begin with a dot are left out. A dataset of LibTorch's data loader
/// that gives whole batches, and reads files as they are asked for, in a loader's workers too.
///
/// With ImageCrop::random what becomes of an image is decided by (seed, epoch, index) alone. Copies
/// share the epoch, since loaders work on copies: set_epoch() reaches them.
/// Shapes: batch.data [B, 3, size, size] of float in 0 … 1, batch.target [B] of int64.
class ImageFolder
    : public torch::data::datasets::BatchDataset<ImageFolder, torch::data::Example<>> {
 public:
  /// Throws: DataError naming the folder without classes, or the class without images.
  /// InvalidArgument for options that fit no image. BackendUnavailable in a build without libjpeg
  /// and libpng.
  explicit ImageFolder(const std::filesystem::path& root, ImageFolderOptions options = {});

  /// Throws: DataError naming the file that is missing, truncated, no JPEG or PNG image, or of
  /// another size than the first where no size was given; or an index that is not below size().
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override;

  /// To be called before each pass; otherwise all are alike.
  void set_epoch(std::uint64_t epoch) { *epoch_ = epoch; }

  /// The names of the classes; a target is a place in this list.
  const std::vector<std::string>& classes() const { return listing_->classes; }
  const std::filesystem::path& file(std::size_t index) const;

 private:
  struct Listing {
    std::vector<std::string> classes;
    std::vector<std::filesystem::path> files;
    std::vector<std::int64_t> targets;
  };
  static std::shared_ptr<const Listing> list(const std::filesystem::path& root);

  at::Tensor read(std::size_t index) const;

  std::shared_ptr<const Listing> listing_;
  ImageFolderOptions options_;
  detail::ImageSize stored_;  ///< of the first image, where no size was given
  std::shared_ptr<std::atomic<std::uint64_t>> epoch_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace lockstep
