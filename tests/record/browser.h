#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::testing {

/// Red, green and blue.
using Pixel = std::array<std::uint8_t, 3>;

/// The result of rendering a page in a browser.
struct Sight {
  std::size_t height = 0;
  std::size_t width = 0;
  std::vector<Pixel> pixels;         ///< row by row
  std::vector<std::string> console;  ///< whatever the page or what it could not do wrote there

  const Pixel& at(std::size_t row, std::size_t column) const {
    return pixels[row * width + column];
  }
};

/// A browser without a screen, if there is one on PATH.
std::optional<std::string> browser();

/// Opens the page by day, in a window of this size. The browser knows no home, no screen and no
/// variable but PATH, and keeps what it writes in the folder.
/// Throws: std::runtime_error with what it said where it made no picture.
Sight look_at(const std::filesystem::path& page, const std::filesystem::path& folder,
              std::size_t height, std::size_t width);

}  // namespace lockstep::testing
