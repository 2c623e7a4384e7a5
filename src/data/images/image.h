#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::inline v0_2::detail {

/// Height and width, in pixels.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool operator==(const ImageSize&) const = default;
};

/// Red, green and blue of each pixel, 0 to 255, row after row.
struct Image {
  ImageSize size;
  std::vector<std::uint8_t> values;
};

/// Told the size of the stored image, returns what size will do: the decoder may give a smaller one
/// than is stored, but none smaller than this in either direction.
using WantedSize = std::function<ImageSize(ImageSize stored)>;

/// Empty when images can be decoded, else why not.
std::string images_available();

/// Reads a JPEG or PNG file, which its first bytes tell apart. Gray and palettes become colours,
/// CMYK too; transparency is left out, 16 bits become 8.
/// Throws: DataError naming the file, what was expected and what was found. BackendUnavailable in a
/// build without libjpeg and libpng.
Image read_image(const std::filesystem::path& path, const WantedSize& wanted);

/// More pixels than this are refused: a damaged header could ask for all memory.
inline constexpr std::int64_t most_pixels = std::int64_t{1} << 28;

/// Throws: DataError naming the file if it has more than most_pixels, or more than its bytes can
/// hold at pixels_per_byte, which is the most that the format packs into a byte.
void check_size(ImageSize size, std::size_t bytes, std::int64_t pixels_per_byte,
                const std::string& file);

Image decode_jpeg(std::span<const std::byte> bytes, const std::string& file,
                  const WantedSize& wanted);
Image decode_png(std::span<const std::byte> bytes, const std::string& file,
                 const WantedSize& wanted);

}  // namespace lockstep::detail
