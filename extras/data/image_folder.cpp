#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <set>
#include <system_error>
#include <utility>

#include "core/operation_error.h"
#include "core/text.h"
#include "extras/data/image_crop.h"
#include "extras/data/images/image.h"
#include "lockstep/datasets.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

using detail::concat;
using detail::Crop;
using detail::Image;
using detail::ImageSize;
namespace fs = std::filesystem;

/// The sorted names of the entries of a folder that satisfy wanted. Skips hidden ones.
template <class Wanted>
std::set<std::string> names_in(const fs::path& folder, const Wanted& wanted) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.') && wanted(*entry)) names.insert(name);
  }
  if (error) throw DataError(concat(folder.string(), ": cannot list: ", error.message()));
  return names;
}

bool is_class(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.is_directory(ignored);
}

bool is_image(const fs::directory_entry& entry) {
  std::string extension = entry.path().extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char character) { return std::tolower(character); });
  return (extension == ".jpg" || extension == ".jpeg" || extension == ".png") && !is_class(entry);
}

std::string text_of(ImageSize size) { return concat(size.width, 'x', size.height); }

/// Crops an image and scales the crop to size x size. Values: 0 … 1.
/// Shapes: [3, size, size], or [3, height, width] of the crop for size 0.
at::Tensor crop_and_scale(Image& image, const Crop& crop, std::int64_t size) {
  at::Tensor part =
      at::from_blob(image.values.data(), {image.size.height, image.size.width, 3}, at::kByte)
          .narrow(0, crop.top, crop.size.height)
          .narrow(1, crop.left, crop.size.width);
  if (crop.flipped) part = part.flip(1);
  part = part.permute({2, 0, 1}).to(at::kFloat, false, false, at::MemoryFormat::Contiguous);
  if (size > 0 && crop.size != ImageSize{.height = size, .width = size}) {
    // The operator that torch::nn::functional::interpolate calls with antialias.
    part = at::_upsample_bilinear2d_aa(part.unsqueeze(0), at::IntArrayRef({size, size}), false)
               .squeeze(0);
  }
  return part.div_(255);
}

}  // namespace

struct ImageFolder::Listing {
  std::vector<std::string> classes;
  std::vector<fs::path> files;
  std::vector<std::int64_t> targets;
  ImageSize stored;  ///< size of the first image, if the options have no size
};

std::shared_ptr<ImageFolder::Listing> ImageFolder::list(const fs::path& root) {
  auto listing = std::make_shared<Listing>();
  for (const std::string& name : names_in(root, is_class)) {
    const auto files = names_in(root / name, is_image);
    if (files.empty())
      throw DataError(concat((root / name).string(),
                             ": expected .jpg, .jpeg or .png images of the class, found none"));
    for (const std::string& file : files) {
      listing->files.push_back(root / name / file);
      listing->targets.push_back(static_cast<std::int64_t>(listing->classes.size()));
    }
    listing->classes.push_back(name);
  }
  if (listing->classes.empty())
    throw DataError(concat(root.string(), ": expected a folder for each class, found none"));
  return listing;
}

ImageFolder::ImageFolder(const fs::path& root, ImageFolderOptions options) : options_(options) {
  if (options.size < 0 || options.size > 1 << 14 || !(options.centre > 0 && options.centre <= 1) ||
      (options.size == 0 && options.crop == ImageCrop::random))
    detail::throw_invalid("ImageFolder", "got size ", options.size, ", centre ", options.centre,
                          options.crop == ImageCrop::random ? " and random crops" : "",
                          ", expected a size of 1 to 16384, or 0 with centre crops, and a "
                          "centre above 0 and at most 1");
  if (const std::string why = detail::images_available(); !why.empty())
    throw BackendUnavailable("ImageFolder: " + why, {.operation = "ImageFolder"});
  detail::as_operation("ImageFolder", [&] {
    const auto listing = list(root);
    if (options.size == 0)
      listing->stored = detail::read_image(listing->files.front(), std::identity()).size;
    listing_ = listing;
  });
}

at::Tensor ImageFolder::read(std::size_t index) const {
  const fs::path& path = file(index);
  ImageSize stored;
  Crop crop;
  Image image = detail::read_image(path, [&](ImageSize size) {
    stored = crop.size = size;
    if (options_.size == 0) return size;
    crop = options_.crop == ImageCrop::random
               ? detail::random_crop(size, detail::bits_of(options_.seed, *epoch_, index))
               : detail::centre_crop(size, options_.centre);
    // The decoded image must be large enough for its crop to have the size of the options.
    const auto min_side = [&](std::int64_t whole, std::int64_t part) {
      return std::min(whole, (whole * options_.size + part - 1) / part);
    };
    return ImageSize{.height = min_side(size.height, crop.size.height),
                     .width = min_side(size.width, crop.size.width)};
  });
  if (options_.size == 0 && image.size != listing_->stored)
    throw DataError(concat(path.string(), ": is ", text_of(image.size), ", expected ",
                           text_of(listing_->stored), " as ", file(0).string(),
                           "; set ImageFolderOptions::size to scale all images to one size"));
  return crop_and_scale(image, detail::scaled(crop, stored, image.size), options_.size);
}

torch::data::Example<> ImageFolder::get_batch(c10::ArrayRef<std::size_t> indices) {
  const ImageSize size = options_.size > 0
                             ? ImageSize{.height = options_.size, .width = options_.size}
                             : listing_->stored;
  const auto count = static_cast<std::int64_t>(indices.size());
  const at::Tensor images = at::empty({count, 3, size.height, size.width}, at::kFloat);
  const at::Tensor targets = at::empty({count}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t index = indices[static_cast<std::size_t>(i)];
    images[i].copy_(detail::as_operation("ImageFolder", [&] { return read(index); }));
    targets.mutable_data_ptr<std::int64_t>()[i] = listing_->targets[index];
  }
  return {images, targets};
}

const std::vector<std::string>& ImageFolder::classes() const { return listing_->classes; }

std::optional<std::size_t> ImageFolder::size() const { return listing_->files.size(); }

const fs::path& ImageFolder::file(std::size_t index) const {
  if (index >= listing_->files.size())
    throw DataError(
        concat("ImageFolder: got index ", index, ", expected one below ", listing_->files.size()),
        {.operation = "ImageFolder"});
  return listing_->files[index];
}

}  // namespace lockstep
