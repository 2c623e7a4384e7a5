#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::inline v0_2 {

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

/// Synthetic images of Cifar10's form, for use without its files. Each shows one of ten shapes, its
/// class, of any colour and size, at any place, over noise. Easy to learn, and the same on every
/// platform.
Cifar10 coloured_shapes(std::size_t count, std::uint64_t seed);

/// Which part of an image is shown.
enum class ImageCrop : std::uint8_t {
  centre,  ///< a square in the middle, for evaluation
  random   ///< one of 8 to 100 % of the area, 3/4 to 4/3 as wide as high; flipped every other time
};

struct ImageFolderOptions {
  std::int64_t size = 0;  ///< height and width to give; 0 as stored, when all are of one size
  ImageCrop crop = ImageCrop::centre;
  double centre = 0.875;   ///< with ImageCrop::centre, the part of the shorter side that is shown
  std::uint64_t seed = 0;  ///< with ImageCrop::random
};

/// The images of a folder with a subfolder for each class, as torchvision's ImageFolder. Classes
/// and files are numbered in the order of their names. A file is an image if its name ends in .jpg,
/// .jpeg or .png, in either case. Names that begin with a dot are left out. A dataset of LibTorch's
/// data loader that gives whole batches, and reads files as they are asked for, in a loader's
/// workers too.
///
/// With ImageCrop::random the crop of an image depends on (seed, epoch, index) alone. Copies share
/// the epoch, since loaders work on copies: set_epoch() reaches them.
/// Shapes: batch.data [B, 3, size, size] of float in 0 … 1, batch.target [B] of int64.
class ImageFolder
    : public torch::data::datasets::BatchDataset<ImageFolder, torch::data::Example<>> {
 public:
  /// Throws: DataError naming the folder without classes, or the class without images.
  /// InvalidArgument for options that fit no image. BackendUnavailable in a build without libjpeg
  /// and libpng.
  explicit ImageFolder(const std::filesystem::path& root, ImageFolderOptions options = {});

  /// Throws: DataError naming the file that is missing, truncated, no JPEG or PNG image, or of
  /// another size than the first where no size was given. DataError also for an index that is not
  /// below size().
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override;

  /// To be called before each pass; otherwise all are alike.
  void set_epoch(std::uint64_t epoch) { *epoch_ = epoch; }

  /// The names of the classes; a target is a place in this list.
  const std::vector<std::string>& classes() const;
  const std::filesystem::path& file(std::size_t index) const;

 private:
  struct Listing;
  static std::shared_ptr<Listing> list(const std::filesystem::path& root);

  at::Tensor read(std::size_t index) const;

  std::shared_ptr<const Listing> listing_;
  ImageFolderOptions options_;
  std::shared_ptr<std::atomic<std::uint64_t>> epoch_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

/// How images are varied.
struct AugmentOptions {
  std::uint64_t seed = 0;
  int pad = 4;       ///< pixels added on each side by mirroring, before a crop to the old size
  bool flip = true;  ///< left to right, every other time
};

/// Images varied one by one: padded by mirroring, edge included, cropped at random to their old
/// size, flipped at random. The variation of an image depends on (seed, epoch, index) alone.
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
