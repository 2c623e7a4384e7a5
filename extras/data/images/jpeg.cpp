// jpeglib.h needs <cstdio> and does not include it.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>
#include <utility>

#include "core/text.h"
#include "extras/data/images/image.h"
#include "lockstep/error.h"

// Note [How libjpeg fails]
// libjpeg reports an error by error_exit(), which must not return. An exception must not unwind the
// C frames of libjpeg. So each function that calls libjpeg calls setjmp() first, and error_exit()
// calls longjmp(). No object with a destructor may be between the two.

namespace lockstep::inline v0_2::detail {

namespace {

constexpr int eighths = 8;  // libjpeg can decode at 1/8 to 8/8 of the stored size

class Decoder {
 public:
  explicit Decoder(const std::string& file) : file_(file) {
    jpeg_std_error(&errors_);
    errors_.error_exit = [](j_common_ptr info) { longjmp(of(info).failed_, 1); };
    errors_.emit_message = [](j_common_ptr info, int level) {
      // libjpeg fills missing data with gray. Other warnings may be harmless, such as extra bytes.
      if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) longjmp(of(info).failed_, 1);
    };
    errors_.output_message = [](j_common_ptr) {};
    info_.err = &errors_;
    info_.client_data = this;
    if (setjmp(failed_) != 0) fail();
    jpeg_create_decompress(&info_);
  }
  ~Decoder() { jpeg_destroy_decompress(&info_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  void read_header(std::span<const std::byte> bytes) {
    if (setjmp(failed_) != 0) fail();
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&info_, TRUE);
    const bool four = info_.num_components == 4;
    info_.out_color_space = four ? JCS_CMYK : JCS_RGB;
  }

  ImageSize stored() const { return {.height = info_.image_height, .width = info_.image_width}; }

  /// A Huffman code needs at least one bit per block of 8x8 pixels.
  std::int64_t pixels_per_byte() const { return info_.arith_code ? most_pixels_per_byte : 8 * 64; }

  /// Selects the smallest scale at which the image is not smaller than wanted.
  void scale_to(ImageSize wanted) {
    info_.scale_denom = eighths;
    for (info_.scale_num = 1; info_.scale_num < eighths; ++info_.scale_num) {
      const auto scaled = [&](std::int64_t side) { return side * info_.scale_num / eighths; };
      if (scaled(stored().height) >= wanted.height && scaled(stored().width) >= wanted.width) break;
    }
  }

  /// Begins decoding. Returns the scaled size and the number of values per pixel.
  std::pair<ImageSize, int> start() {
    if (setjmp(failed_) != 0) fail();
    jpeg_start_decompress(&info_);
    return {{.height = info_.output_height, .width = info_.output_width}, info_.output_components};
  }

  void read(std::uint8_t* to) {
    if (setjmp(failed_) != 0) fail();
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = to + static_cast<std::size_t>(info_.output_scanline) * info_.output_width *
                              static_cast<std::size_t>(info_.output_components);
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_finish_decompress(&info_);
  }

  /// Adobe's programs store inverted CMYK values.
  bool inverted() const { return info_.saw_Adobe_marker != 0; }

 private:
  static Decoder& of(j_common_ptr info) { return *static_cast<Decoder*>(info->client_data); }

  [[noreturn]] void fail() {
    char text[JMSG_LENGTH_MAX];
    errors_.format_message(reinterpret_cast<j_common_ptr>(&info_), text);
    throw DataError(concat(file_, ": is a damaged or truncated JPEG image: ", text));
  }

  const std::string& file_;
  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  jmp_buf failed_{};
};

/// Converts in place; values shrinks to 3/4.
void cmyk_to_rgb(std::vector<std::uint8_t>& values, bool inverted) {
  auto to = values.begin();
  for (auto from = values.begin(); from != values.end(); from += 4) {
    const auto ink = [&](std::uint8_t value) { return inverted ? value : 255 - value; };
    const int black = ink(from[3]);
    for (int i = 0; i < 3; ++i)
      *to++ = static_cast<std::uint8_t>((ink(from[i]) * black + 127) / 255);
  }
  values.erase(to, values.end());
}

}  // namespace

std::string images_available() { return {}; }

Image decode_jpeg(std::span<const std::byte> bytes, const std::string& file,
                  const WantedSize& wanted) {
  Decoder decoder(file);
  decoder.read_header(bytes);
  check_size(decoder.stored(), bytes.size(), decoder.pixels_per_byte(), file);
  decoder.scale_to(wanted(decoder.stored()));
  const auto [size, channels] = decoder.start();
  Image image{.size = size,
              .values = std::vector<std::uint8_t>(
                  static_cast<std::size_t>(size.height * size.width * channels))};
  decoder.read(image.values.data());
  if (channels == 4) cmyk_to_rgb(image.values, decoder.inverted());
  return image;
}

}  // namespace lockstep::detail
