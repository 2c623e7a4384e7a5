#pragma once

// jpeglib.h needs what it does not include.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on

#include <cstdlib>
#include <string>

namespace lockstep::testing {

/// A JPEG file of images that change slowly, so that little is lost.
inline std::string jpeg_file(int height, int width, J_COLOR_SPACE colours,
                             const std::string& values) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_height = static_cast<JDIMENSION>(height);
  info.image_width = static_cast<JDIMENSION>(width);
  info.in_color_space = colours;
  info.input_components = colours == JCS_GRAYSCALE ? 1 : colours == JCS_RGB ? 3 : 4;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  jpeg_start_compress(&info, TRUE);
  const std::size_t row_bytes = values.size() / static_cast<std::size_t>(height);
  std::string copy = values;
  while (info.next_scanline < info.image_height) {
    auto* row = reinterpret_cast<JSAMPROW>(copy.data() + info.next_scanline * row_bytes);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  const std::string bytes(reinterpret_cast<char*>(memory), size);
  jpeg_destroy_compress(&info);
  free(memory);
  return bytes;
}

}  // namespace lockstep::testing
