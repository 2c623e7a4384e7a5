#include "lockstep/version.h"

#include <string>

#include "core/text.h"

namespace lockstep::inline v0_2 {

std::string_view version() {
  static const std::string text = detail::concat(
      LOCKSTEP_VERSION_MAJOR, '.', LOCKSTEP_VERSION_MINOR, '.', LOCKSTEP_VERSION_PATCH);
  return text;
}

}  // namespace lockstep
