#include "data/image_crop.h"

#include <algorithm>
#include <cmath>

#include "data/random_bits.h"

namespace lockstep::inline v0_2::detail {

namespace {

constexpr double smallest_area = 0.08;
constexpr double widest = 4.0 / 3.0;
constexpr int attempts = 10;

/// Numbers from 0 up to, without, 1: as many as wanted of the same bits.
class Draws {
 public:
  explicit Draws(std::uint64_t bits) : bits_(bits) {}
  double operator()() {
    bits_ = mix(bits_);
    return static_cast<double>(bits_ >> 11) * 0x1p-53;
  }
  /// 0 to most.
  std::int64_t up_to(std::int64_t most) {
    return static_cast<std::int64_t>((*this)() * static_cast<double>(most + 1));
  }

 private:
  std::uint64_t bits_;
};

Crop middle(ImageSize image, ImageSize part) {
  return {.top = (image.height - part.height) / 2,
          .left = (image.width - part.width) / 2,
          .size = part};
}

std::int64_t rounded(double value) { return std::max<std::int64_t>(1, std::llround(value)); }

}  // namespace

Crop centre_crop(ImageSize image, double part) {
  const std::int64_t side =
      rounded(part * static_cast<double>(std::min(image.height, image.width)));
  return middle(image, {.height = side, .width = side});
}

Crop random_crop(ImageSize image, std::uint64_t bits) {
  Draws draw(bits);
  const bool flipped = draw() < 0.5;
  const auto height = static_cast<double>(image.height);
  const auto width = static_cast<double>(image.width);
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const double area = height * width * (smallest_area + draw() * (1 - smallest_area));
    const double ratio = std::exp((2 * draw() - 1) * std::log(widest));  // width over height
    const ImageSize part{.height = rounded(std::sqrt(area / ratio)),
                         .width = rounded(std::sqrt(area * ratio))};
    if (part.height > image.height || part.width > image.width) continue;
    return {.top = draw.up_to(image.height - part.height),
            .left = draw.up_to(image.width - part.width),
            .size = part,
            .flipped = flipped};
  }
  // A long image: as much of its middle as the widest or highest part holds.
  const ImageSize part{.height = std::min(image.height, rounded(width * widest)),
                       .width = std::min(image.width, rounded(height * widest))};
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
