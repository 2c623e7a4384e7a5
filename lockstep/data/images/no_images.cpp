#include "lockstep/core/error.h"
#include "lockstep/data/images/image.h"

// What a build without libjpeg and libpng links instead of the decoders.

namespace lockstep::detail {

std::string images_available() {
  return "built without libjpeg and libpng: configure with -DLOCKSTEP_WITH_IMAGES=ON";
}

Image decode_jpeg(std::span<const std::byte>, const std::string& file, const WantedSize&) {
  throw BackendUnavailable(file + ": " + images_available());
}

Image decode_png(std::span<const std::byte>, const std::string& file, const WantedSize&) {
  throw BackendUnavailable(file + ": " + images_available());
}

}  // namespace lockstep::detail
