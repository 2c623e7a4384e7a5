#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>

namespace lockstep::testing {

/// Whose numbers are those of the PNG format.
enum class PngColour : std::uint8_t { gray = 0, rgb = 2, palette = 3, gray_alpha = 4, rgba = 6 };

/// A PNG file, made without libpng. values: those of all rows, one after the other, of this depth;
/// palette: red, green and blue of each of its colours.
inline std::string png_file(std::uint32_t height, std::uint32_t width, PngColour colour,
                            const std::string& values, const std::string& palette = "",
                            char depth = 8) {
  const auto number = [](std::uint64_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
    return bytes;
  };
  const auto chunk = [&](const std::string& type, const std::string& content) {
    const std::string checked = type + content;
    return number(content.size()) + checked +
           number(crc32(0, reinterpret_cast<const Bytef*>(checked.data()),
                        static_cast<uInt>(checked.size())));
  };
  std::string rows;
  for (std::size_t row = 0; row < height; ++row)
    rows += '\0' + values.substr(row * (values.size() / height), values.size() / height);
  std::string packed(compressBound(rows.size()), '\0');
  uLongf size = packed.size();
  compress(reinterpret_cast<Bytef*>(packed.data()), &size,
           reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  packed.resize(size);
  const std::string header =
      number(width) + number(height) + depth + static_cast<char>(colour) + std::string(3, '\0');
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) +
         (palette.empty() ? "" : chunk("PLTE", palette)) + chunk("IDAT", packed) +
         chunk("IEND", "");
}

}  // namespace lockstep::testing
