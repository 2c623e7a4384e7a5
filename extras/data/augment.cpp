#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "core/operation_error.h"
#include "core/text.h"
#include "extras/data/image_crop.h"
#include "lockstep/datasets.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

/// The random shift and flip of one image. Units: pixels.
struct Variation {
  std::int64_t down;
  std::int64_t right;
  bool flipped;
};

Variation variation_of(std::size_t index, std::uint64_t epoch, const AugmentOptions& options) {
  const std::uint64_t bits = detail::bits_of(options.seed, epoch, index);
  const auto choices = static_cast<std::uint64_t>(2 * options.pad + 1);
  const auto offset = [&](int shift) {
    const std::uint64_t part = bits >> shift & 0xffffff;
    return static_cast<std::int64_t>(part * choices >> 24) - options.pad;
  };
  return {.down = offset(0), .right = offset(24), .flipped = options.flip && bits >> 63 != 0};
}

/// Maps a coordinate of the padded image to the image, which is mirrored beyond its edges. The
/// pixels at an edge occur twice.
std::int64_t mirrored(std::int64_t position, std::int64_t size) {
  if (position < 0) return -position - 1;
  return position < size ? position : 2 * size - 1 - position;
}

}  // namespace

at::Tensor augment(const at::Tensor& images, c10::ArrayRef<std::size_t> indices,
                   std::uint64_t epoch, const AugmentOptions& options) {
  if (images.dim() != 4 || images.scalar_type() != at::kFloat || !images.is_cpu() ||
      images.size(0) != static_cast<std::int64_t>(indices.size()))
    detail::throw_invalid("augment", "got images ", images.sizes(), " of ",
                          toString(images.scalar_type()), " on ", images.device(), " and ",
                          indices.size(), " indices, expected [B, C, H, W] of Float on cpu and B");
  const std::int64_t channels = images.size(1);
  const std::int64_t height = images.size(2);
  const std::int64_t width = images.size(3);
  if (options.pad < 0 || options.pad > std::min(height, width))
    detail::throw_invalid("augment", "got a pad of ", options.pad, ", expected 0 to ",
                          std::min(height, width));

  if (options.pad == 0 && !options.flip) return images;

  const at::Tensor source = images.contiguous();
  at::Tensor result = at::empty_like(source);
  const float* from = source.const_data_ptr<float>();
  float* to = result.mutable_data_ptr<float>();
  std::vector<std::int64_t> column(static_cast<std::size_t>(width));
  for (const std::size_t index : indices) {
    const auto [down, right, flipped] = variation_of(index, epoch, options);
    for (std::int64_t x = 0; x < width; ++x)
      column[static_cast<std::size_t>(x)] = mirrored((flipped ? width - 1 - x : x) + right, width);
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      for (std::int64_t y = 0; y < height; ++y) {
        const float* const row = from + mirrored(y + down, height) * width;
        for (const std::int64_t x : column) *to++ = row[x];
      }
      from += height * width;
    }
  }
  return result;
}

}  // namespace lockstep
