#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
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
#include <variant>
#include <vector>

namespace lockstep::inline v0_2 {

/// The handwritten digits of MNIST, read into memory from IDX files, plain or compressed (.gz). A
/// dataset for LibTorch's data loader that returns whole batches, so no Stack transform is needed.
/// Shapes: batch.data [B, 1, 28, 28] of float in 0 … 1, batch.target [B] of int64 in 0 … 9.
/// Source: http://yann.lecun.com/exdb/mnist/ (the format)
class Mnist : public torch::data::datasets::BatchDataset<Mnist, torch::data::Example<>> {
 public:
  enum class Split : std::uint8_t { train, test };

  /// Reads {train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte, or the same with .gz, from the
  /// folder root.
  /// Throws: DataError naming the file, the offset, the expected value and the value found, if a
  /// file is missing, truncated, corrupt or of another format.
  explicit Mnist(const std::filesystem::path& root, Split split = Split::train);

  /// Throws: DataError for an index that is not below size().
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  /// One digit by its index.
  /// Shapes: data [1, 28, 28], target [].
  torch::data::Example<> get(std::size_t index);
  std::optional<std::size_t> size() const override;

  /// All digits as stored in the files.
  /// Shapes: [size, 1, 28, 28] of uint8, and [size] of int64.
  const at::Tensor& images() const { return images_; }
  const at::Tensor& targets() const { return targets_; }

 private:
  at::Tensor images_;
  at::Tensor targets_;
};

/// The colour images of CIFAR-10, read into memory from the files of its binary version. A dataset
/// for LibTorch's data loader that returns whole batches, so no Stack transform is needed.
/// Shapes: batch.data [B, 3, 32, 32] of float in 0 … 1, batch.target [B] of int64 in 0 … 9.
/// Source: https://www.cs.toronto.edu/~kriz/cifar.html (the format)
class Cifar10 : public torch::data::datasets::BatchDataset<Cifar10, torch::data::Example<>> {
 public:
  enum class Split : std::uint8_t { train, test };

  static constexpr std::array<std::string_view, 10> class_names{
      "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};

  /// Reads data_batch_1.bin and the existing ones of data_batch_2.bin to data_batch_5.bin, or
  /// test_batch.bin, from the folder root. A file may have any number of images.
  /// Throws: DataError naming the file, the offset, the expected value and the value found, if a
  /// file is missing, truncated or corrupt.
  explicit Cifar10(const std::filesystem::path& root, Split split = Split::train);
  /// A dataset of the given images and classes.
  /// Shapes: images [size, 3, 32, 32] of uint8, targets [size] of int64 in 0 … 9.
  /// Throws: InvalidArgument for tensors of other shapes, dtypes or values.
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

/// A column of a CSV file: its name in the header line, or its index from 0.
using CsvColumn = std::variant<std::string, std::int64_t>;

struct CsvOptions {
  std::vector<CsvColumn> features = {};  ///< empty: all columns but those of targets and label
  std::vector<CsvColumn> targets = {};   ///< numbers
  std::optional<CsvColumn> label = {};   ///< classes: whole numbers from 0; excludes targets
  bool header = true;                    ///< whether the first line has the names of the columns
  char separator = ',';
  std::optional<double> empty = {};  ///< value for empty features and targets; not set: a DataError
  at::ScalarType dtype = at::kFloat;  ///< of features and targets: kFloat or kDouble
};

/// The numbers of a CSV file, read into memory. A dataset for LibTorch's data loader that returns
/// whole batches, so no Stack transform is needed. Columns that are not chosen may have any text.
///
/// Fields may be in quotes, which hide separators but not the end of the line. Spaces around fields
/// and lines without text are skipped. Lines may end in CRLF. Numbers have a decimal point; nan and
/// inf are numbers.
/// Shapes: batch.data [B, features], batch.target [B, targets] of the dtype. With a label,
/// batch.target [B] of int64.
class CsvFile : public torch::data::datasets::BatchDataset<CsvFile, torch::data::Example<>> {
 public:
  /// Throws: DataError for a missing column, a line with more or fewer fields than the first, a
  /// field that is no number of the dtype, and a file without rows. It names the file, the line
  /// from 1, the column from 0, the expected value and the value found. InvalidArgument for options
  /// that contradict each other.
  explicit CsvFile(const std::filesystem::path& path, const CsvOptions& options = {});

  /// Throws: DataError for an index that is not below size().
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override;

  /// All rows.
  /// Shapes: [size, features], and [size, targets], or [size] of labels.
  const at::Tensor& features() const { return features_; }
  const at::Tensor& targets() const { return targets_; }

 private:
  at::Tensor features_;
  at::Tensor targets_;
};

struct SeriesWindowOptions {
  std::int64_t length = 1;   ///< rows of a window
  std::int64_t horizon = 1;  ///< rows from the last row of a window to its target
  std::int64_t stride = 1;   ///< rows from the start of a window to that of the next
  /// 0: the target is one row. n: it is n successive rows, of which horizon gives the first.
  std::int64_t target_length = 0;
};

/// Windows over series of successive rows, such as time series. Window i of a series has the rows
/// i·stride to i·stride + length − 1. Its target is the row i·stride + length − 1 + horizon. No
/// window and no target crosses the end of a series. A series that is too short has no window.
/// Windows are numbered series after series.
/// Shapes: batch.data [B, length, …], where … is the shape of a row of data. batch.target [B, …],
/// or [B, target_length, …], where … is the shape of a row of targets.
class SeriesWindows
    : public torch::data::datasets::BatchDataset<SeriesWindows, torch::data::Example<>> {
 public:
  /// Each series has its rows in data, and as many rows of targets in target. Both may be one
  /// tensor. For one series: SeriesWindows windows({rows, targets}, {.length = 64}).
  /// Shapes: data [rows, …], target [rows, …]; rows may differ between series.
  /// Throws: InvalidArgument for no series, for other shapes, dtypes that differ between series,
  /// a length or stride below 1, and a negative horizon or target_length.
  explicit SeriesWindows(std::vector<torch::data::Example<>> series,
                         SeriesWindowOptions options = {});
  explicit SeriesWindows(torch::data::Example<> series, SeriesWindowOptions options = {})
      : SeriesWindows(std::vector{std::move(series)}, options) {}

  /// Windows over the first floor(fraction·rows) rows of each series, and windows over the others,
  /// such as for training and validation. The two have no row in common.
  /// Throws: InvalidArgument for a fraction that is not in 0 … 1.
  std::pair<SeriesWindows, SeriesWindows> split(double fraction) const;

  /// Throws: DataError for an index that is not below size().
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override;

 private:
  std::vector<torch::data::Example<>> series_;  ///< views of rows_ and targets_
  SeriesWindowOptions options_;
  at::Tensor rows_;           ///< of all series
  at::Tensor targets_;        ///< of all series
  at::Tensor starts_;         ///< the first row of each window in rows_
  at::Tensor target_starts_;  ///< the first row of each target in targets_
};

/// Synthetic images in the format of Cifar10, for programs without its files. Each image shows one
/// of ten shapes over noise, in a random colour, size and position; the shape is the class. Easy to
/// learn, and the same on every platform.
Cifar10 coloured_shapes(std::size_t count, std::uint64_t seed);

/// Which part of an image is used.
enum class ImageCrop : std::uint8_t {
  centre,  ///< a square in the centre, for evaluation
  random   ///< 8 to 100 % of the area, aspect ratio 3/4 to 4/3; flipped with probability 1/2
};

struct ImageFolderOptions {
  std::int64_t size = 0;  ///< height and width of the output; 0 if all files have the same size
  ImageCrop crop = ImageCrop::centre;
  double centre = 0.875;   ///< for ImageCrop::centre: fraction of the shorter side that is used
  std::uint64_t seed = 0;  ///< for ImageCrop::random
};

/// The images of a folder with one subfolder per class, like torchvision's ImageFolder. Classes and
/// files are sorted by name. A file is an image if its name ends in .jpg, .jpeg or .png, in either
/// case. Names that begin with a dot are ignored. A dataset for LibTorch's data loader that returns
/// whole batches. It reads the files of a batch in the thread that requests it, such as a loader's
/// worker.
///
/// With ImageCrop::random, the crop of an image depends on (seed, epoch, index) only. Copies share
/// the epoch, because loaders use copies: set_epoch() also affects them.
/// Shapes: batch.data [B, 3, size, size] of float in 0 … 1, batch.target [B] of int64.
class ImageFolder
    : public torch::data::datasets::BatchDataset<ImageFolder, torch::data::Example<>> {
 public:
  /// Throws: DataError naming a folder without classes or a class without images. InvalidArgument
  /// for options that are out of range. BackendUnavailable in a build without libjpeg and libpng.
  explicit ImageFolder(const std::filesystem::path& root, ImageFolderOptions options = {});

  /// Throws: DataError naming the file if it is missing, truncated, not a JPEG or PNG image, or if
  /// no size was given and its size differs from that of the first image. DataError also for an
  /// index that is not below size().
  torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override;
  std::optional<std::size_t> size() const override;

  /// Sets the epoch. Call it before each pass; else all passes have the same variations.
  void set_epoch(std::uint64_t epoch) { *epoch_ = epoch; }

  /// The names of the classes; a target is an index of this list.
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

/// Options of augment().
struct AugmentOptions {
  std::uint64_t seed = 0;
  int pad = 4;  ///< pixels added on each side by mirroring, before the crop to the original size
  bool flip = true;  ///< flip left to right with probability 1/2
};

/// Augments each image: pads it by mirroring (edge pixels included), crops it at random to its
/// original size, and flips it at random. The variation of an image depends on (seed, epoch, index)
/// only.
/// Shapes: images [B, C, H, W] of float on the CPU and B indices; the result has the shape of
/// images.
/// Throws: InvalidArgument for other tensors, and for a pad that is negative or larger than an
/// image.
/// Source: the augmentation of SINGA's CNN examples
at::Tensor augment(const at::Tensor& images, c10::ArrayRef<std::size_t> indices,
                   std::uint64_t epoch, const AugmentOptions& options);

/// A dataset whose images are augmented when they are read, such as in a loader's worker.
///
/// Copies share the epoch, because LibTorch's data loader uses copies: set_epoch() also affects
/// them.
template <class D>
class Augmented : public torch::data::datasets::BatchDataset<Augmented<D>, torch::data::Example<>> {
 public:
  explicit Augmented(D dataset, AugmentOptions options = {})
      : dataset_(std::move(dataset)), options_(options) {}

  /// Sets the epoch. Call it before each pass; else all passes have the same variations.
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
