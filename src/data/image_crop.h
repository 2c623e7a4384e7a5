#pragma once

#include <cstdint>

#include "data/images/image.h"

namespace lockstep::inline v0_2::detail {

/// A part of an image, in its pixels.
struct Crop {
  std::int64_t top = 0;
  std::int64_t left = 0;
  ImageSize size;
  bool flipped = false;
  bool operator==(const Crop&) const = default;
};

/// The square in the middle whose side is this part of the shorter side, at least one pixel.
Crop centre_crop(ImageSize image, double part);

/// A part that these bits choose.
/// Source: RandomResizedCrop and RandomHorizontalFlip of torchvision, with their defaults
Crop random_crop(ImageSize image, std::uint64_t bits);

/// The same part of the image at another size.
Crop scaled(const Crop& crop, ImageSize from, ImageSize to);

}  // namespace lockstep::detail
