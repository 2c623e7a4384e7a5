#include "extras/data/images/image.h"
#include "lockstep/error.h"
#include "tests/fuzz/fuzz.h"
#include "tests/png_file.h"

namespace lockstep::inline v0_2::detail {
namespace {

using fuzzing::require;

constexpr ImageSize smallest{.height = 1, .width = 1};
constexpr std::size_t bytes_per_pixel = 12;  // coefficients and values of four channels

/// Decodes the file; the decoder may shrink the image to the wanted size.
std::optional<Image> decode(std::string_view file, bool shrink) {
  const fuzzing::InputFile input(file);
  ImageSize stored;
  auto image = fuzzing::accepted<DataError>(input.path().string(), [&] {
    return read_image(input.path(), [&](ImageSize size) {
      stored = size;
      return shrink ? smallest : size;
    });
  });
  if (!image) return image;
  require(image->size.height >= 1 && image->size.width >= 1, "an image has a pixel");
  require(
      image->values.size() == static_cast<std::size_t>(3 * image->size.height * image->size.width),
      "an image has three values for each pixel");
  require(shrink ? image->size.height <= stored.height && image->size.width <= stored.width
                 : image->size == stored,
          "an image has the stored size, or less where less is wanted");
  return image;
}

}  // namespace
}  // namespace lockstep::detail

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::detail;
  using lockstep::testing::png_file;
  const std::string_view file = lockstep::fuzzing::text_of({data, size});
  const lockstep::fuzzing::MemoryLimit memory(bytes_per_pixel * most_pixels_per_byte * size +
                                              (16 << 20));
  const auto image = decode(file, false);
  if (file.starts_with("\xff\xd8")) decode(file, true);
  if (!image || image->values.size() > (1 << 16)) return 0;
  const auto again = decode(
      png_file(static_cast<std::uint32_t>(image->size.height),
               static_cast<std::uint32_t>(image->size.width), lockstep::testing::PngColour::rgb,
               {image->values.begin(), image->values.end()}),
      false);
  lockstep::fuzzing::require(again && again->size == image->size && again->values == image->values,
                             "the image stored as PNG and decoded again is equal");
  return 0;
}
