#include <png.h>

#include <algorithm>
#include <memory>

#include "core/text.h"
#include "extras/data/images/image.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

Image decode_png(std::span<const std::byte> bytes, const std::string& file,
                 const WantedSize& wanted) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, decltype(&png_image_free)> decoder(&image, png_image_free);
  const auto fail = [&] {
    throw DataError(concat(file, ": is a damaged or truncated PNG image: ", image.message));
  };
  if (png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()) == 0) fail();
  const ImageSize size{.height = image.height, .width = image.width};
  check_size(size, bytes.size(), most_pixels_per_byte, file);
  wanted(size);  // the caller records the size; PNG cannot be decoded at a smaller size
  // Decodes alpha and drops it below: without alpha, libpng would blend with a background.
  const bool transparent = (image.format & PNG_FORMAT_FLAG_ALPHA) != 0;
  image.format = transparent ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
  image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // otherwise 16 bits mean linear intensities
  Image result{.size = size, .values = std::vector<std::uint8_t>(PNG_IMAGE_SIZE(image))};
  if (png_image_finish_read(&image, nullptr, result.values.data(), 0, nullptr) == 0) fail();
  if (transparent) {
    auto to = result.values.begin();
    for (auto from = result.values.begin(); from != result.values.end(); from += 4)
      to = std::copy_n(from, 3, to);
    result.values.erase(to, result.values.end());
  }
  return result;
}

}  // namespace lockstep::detail
