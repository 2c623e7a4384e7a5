#pragma once

#include <cstddef>
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

/// The mixing function of splitmix64. Source: docs/algorithms.md
inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

/// Random bits of a sample in an epoch. Equal arguments give equal bits, in every reader thread.
inline std::uint64_t bits_of(std::uint64_t seed, std::uint64_t epoch, std::size_t index) {
  return mix(mix(mix(seed) ^ epoch) ^ index);
}

}  // namespace lockstep::detail
