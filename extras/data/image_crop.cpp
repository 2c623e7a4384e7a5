#include "extras/data/image_crop.h"

#include <algorithm>
#include <cmath>

namespace lockstep::inline v0_2::detail {

namespace {

constexpr double min_area = 0.08;
constexpr double max_ratio = 4.0 / 3.0;
constexpr int attempts = 10;

Crop middle(ImageSize image, ImageSize part) {
  return {.top = (image.height - part.height) / 2,
          .left = (image.width - part.width) / 2,
          .size = part};
}

std::int64_t rounded(double value) { return std::max<std::int64_t>(1, std::llround(value)); }

}  // namespace

Crop centre_crop(ImageSize image, double fraction) {
  const std::int64_t side =
      rounded(fraction * static_cast<double>(std::min(image.height, image.width)));
  return middle(image, {.height = side, .width = side});
}

Crop random_crop(ImageSize image, std::uint64_t bits) {
  // In [0, 1), and an integer in [0, max].
  const auto random = [&] {
    bits = mix(bits);
    return static_cast<double>(bits >> 11) * 0x1p-53;
  };
  const auto random_up_to = [&](std::int64_t max) {
    return static_cast<std::int64_t>(random() * static_cast<double>(max + 1));
  };
  const bool flipped = random() < 0.5;
  const auto height = static_cast<double>(image.height);
  const auto width = static_cast<double>(image.width);
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const double area = height * width * (min_area + random() * (1 - min_area));
    const double ratio = std::exp((2 * random() - 1) * std::log(max_ratio));  // width over height
    const ImageSize part{.height = rounded(std::sqrt(area / ratio)),
                         .width = rounded(std::sqrt(area * ratio))};
    if (part.height > image.height || part.width > image.width) continue;
    return {.top = random_up_to(image.height - part.height),
            .left = random_up_to(image.width - part.width),
            .size = part,
            .flipped = flipped};
  }
  // No attempt fits a very long image: takes the largest centred part of an allowed ratio.
  const ImageSize part{.height = std::min(image.height, rounded(width * max_ratio)),
                       .width = std::min(image.width, rounded(height * max_ratio))};
  Crop crop = middle(image, part);
  crop.flipped = flipped;
  return crop;
}

Crop scaled(const Crop& crop, ImageSize from, ImageSize to) {
  const auto part = [](std::int64_t place, std::int64_t old_side, std::int64_t side) {
    return place * side / old_side;
  };
  Crop result{.top = part(crop.top, from.height, to.height),
              .left = part(crop.left, from.width, to.width),
              .size = {},
              .flipped = crop.flipped};
  const std::int64_t bottom = part(crop.top + crop.size.height, from.height, to.height);
  const std::int64_t right = part(crop.left + crop.size.width, from.width, to.width);
  result.size = {.height = std::max<std::int64_t>(1, bottom - result.top),
                 .width = std::max<std::int64_t>(1, right - result.left)};
  return result;
}

}  // namespace lockstep::detail
