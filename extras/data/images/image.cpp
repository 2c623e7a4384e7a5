#include "extras/data/images/image.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

namespace {

constexpr std::array<unsigned char, 3> jpeg_magic{0xff, 0xd8, 0xff};
constexpr std::array<unsigned char, 8> png_magic{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

bool begins_with(std::span<const std::byte> bytes, std::span<const unsigned char> magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

}  // namespace

std::vector<std::byte> read_file(const std::filesystem::path& path) {
  const std::string file = path.string();
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  // Opening a named pipe would block until a process writes to it.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw DataError(concat(file, ": is not a regular file"));
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) throw DataError(concat(file, ": cannot open: ", std::strerror(errno)));
  const std::streamoff end = in.tellg();
  std::vector<std::byte> bytes(static_cast<std::size_t>(end));
  in.seekg(0);
  if (!in.read(reinterpret_cast<char*>(bytes.data()), end))
    throw DataError(concat(file, ": offset ", in.gcount(), ": expected ", end,
                           " bytes, found the end: ", std::strerror(errno)));
  return bytes;
}

void check_size(ImageSize size, std::size_t bytes, std::int64_t pixels_per_byte,
                const std::string& file) {
  const auto max_bytes = static_cast<std::size_t>(max_pixels / pixels_per_byte);
  const std::int64_t allowed =
      bytes > max_bytes ? max_pixels : static_cast<std::int64_t>(bytes) * pixels_per_byte;
  if (size.height < 1 || size.width < 1 || size.height > allowed / size.width)
    throw DataError(concat(file, ": is ", size.width, 'x', size.height, ", expected at most ",
                           allowed, " pixels in ", bytes, " bytes"));
}

Image read_image(const std::filesystem::path& path, const WantedSize& wanted) {
  const std::string file = path.string();
  const std::vector<std::byte> bytes = read_file(path);
  if (begins_with(bytes, jpeg_magic)) return decode_jpeg(bytes, file, wanted);
  if (begins_with(bytes, png_magic)) return decode_png(bytes, file, wanted);
  const auto found = joined(std::span(bytes).first(std::min<std::size_t>(4, bytes.size())), " ",
                            [](std::byte byte) { return hex(std::to_integer<unsigned>(byte), 2); });
  throw DataError(concat(file, ": offset 0: expected a JPEG or PNG image, found ",
                         bytes.empty() ? "the end" : found));
}

}  // namespace lockstep::detail
