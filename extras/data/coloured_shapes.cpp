#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>

#include "lockstep/datasets.h"

namespace lockstep::inline v0_2 {

namespace {

constexpr std::size_t shape_side = 32;
constexpr std::int64_t shape_classes = 10;

/// Whether a point is inside the shape of a class. x and y are from -1 to 1 within its bounding
/// box.
bool covers(std::int64_t shape, double x, double y) {
  const double distance = std::max(std::abs(x), std::abs(y));
  if (distance > 1) return false;
  const double radius = std::hypot(x, y);
  const auto stripe = [](double place) { return static_cast<int>((place + 1) * 2.5) % 2 == 0; };
  switch (shape) {
    case 0:  // disc
      return radius < 1;
    case 1:  // square
      return true;
    case 2:  // ring
      return radius < 1 && radius > 0.6;
    case 3:  // frame
      return distance > 0.65;
    case 4:  // cross
      return std::min(std::abs(x), std::abs(y)) < 0.3;
    case 5:  // diagonal cross
      return std::abs(std::abs(x) - std::abs(y)) < 0.35;
    case 6:  // triangle
      return std::abs(x) < (y + 1) / 2;
    case 7:  // horizontal stripes
      return stripe(y);
    case 8:  // vertical stripes
      return stripe(x);
    default:  // checkerboard
      return stripe(x) == stripe(y);
  }
}

}  // namespace

Cifar10 coloured_shapes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  // Not std::uniform_real_distribution, whose results differ between standard libraries.
  const auto between = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(generator() >> 11) * 0x1p-53;
  };
  const auto images = static_cast<std::int64_t>(count);
  at::Tensor pixels = at::empty({images, 3, shape_side, shape_side}, at::kByte);
  at::Tensor targets = at::empty({images}, at::kLong);
  auto* pixel = pixels.mutable_data_ptr<std::uint8_t>();
  auto* target = targets.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < images; ++i) {
    const std::int64_t shape = i % shape_classes;
    target[i] = shape;
    const double size = between(7, 13);
    const double column = between(size, shape_side - size);
    const double row = between(size, shape_side - size);
    // The shape is darker or brighter than the background.
    const double brightness = between(0, 1) < 0.5 ? 0 : 120;
    std::array<double, 3> colour{};
    for (double& value : colour) value = brightness + between(0, 110);
    for (const double value : colour) {
      for (std::size_t y = 0; y < shape_side; ++y) {
        for (std::size_t x = 0; x < shape_side; ++x) {
          const bool shown = covers(shape, (static_cast<double>(x) + 0.5 - column) / size,
                                    (static_cast<double>(y) + 0.5 - row) / size);
          const double base = shown ? value : 150 - brightness;
          *pixel++ = static_cast<std::uint8_t>(std::clamp(base + between(-25, 25), 0.0, 255.0));
        }
      }
    }
  }
  return {std::move(pixels), std::move(targets)};
}

}  // namespace lockstep
