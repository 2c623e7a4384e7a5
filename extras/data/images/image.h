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

/// Returns the smallest height and width that the caller can use, from the size of the stored
/// image. The decoder may reduce the image, but not below these.
using WantedSize = std::function<ImageSize(ImageSize stored)>;

/// Why images cannot be decoded; empty if they can.
std::string images_available();

/// Reads a JPEG or PNG file; its first bytes determine the format. Converts gray, palette and CMYK
/// to RGB and 16 bits to 8. Ignores transparency.
/// Throws: DataError with the file, and what was expected and found. BackendUnavailable in a build
/// without libjpeg and libpng.
Image read_image(const std::filesystem::path& path, const WantedSize& wanted);

/// The bytes of a regular file.
/// Throws: DataError with the file and the system's error.
std::vector<std::byte> read_file(const std::filesystem::path& path);

/// Larger images are rejected: a damaged header could require all memory.
inline constexpr std::int64_t max_pixels = std::int64_t{1} << 28;

/// The most pixels in a byte of a compressed image. deflate compresses at most 1032 bytes into one,
/// and a byte has at most 8 pixels. JPEG's arithmetic coding, which has no bound, is held to it,
/// too.
inline constexpr std::int64_t most_pixels_per_byte = 8 * 1032;

/// pixels_per_byte: the most pixels that the format can compress into a byte.
/// Throws: DataError, with the file, if the image has more than max_pixels, or more pixels than its
/// bytes can hold.
void check_size(ImageSize size, std::size_t bytes, std::int64_t pixels_per_byte,
                const std::string& file);

Image decode_jpeg(std::span<const std::byte> bytes, const std::string& file,
                  const WantedSize& wanted);
Image decode_png(std::span<const std::byte> bytes, const std::string& file,
                 const WantedSize& wanted);

}  // namespace lockstep::detail
