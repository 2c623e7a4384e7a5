#include "extras/data/images/image.h"
#include "lockstep/error.h"

// A build without libjpeg and libpng links this file instead of the decoders.

namespace lockstep::inline v0_2::detail {

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
