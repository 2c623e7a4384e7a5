#pragma once

#include <cstdint>

#include "extras/data/images/image.h"

namespace lockstep::inline v0_2::detail {

/// A part of an image. Units: pixels.
struct Crop {
  std::int64_t top = 0;
  std::int64_t left = 0;
  ImageSize size;
  bool flipped = false;
  bool operator==(const Crop&) const = default;
};

/// The centred square whose side is a fraction of the shorter side, at least one pixel.
Crop centre_crop(ImageSize image, double fraction);

/// A random part and flip, which depend only on the bits.
/// Source: RandomResizedCrop and RandomHorizontalFlip of torchvision, with their defaults
Crop random_crop(ImageSize image, std::uint64_t bits);

/// The same part of the image at another size.
Crop scaled(const Crop& crop, ImageSize from, ImageSize to);

}  // namespace lockstep::detail
