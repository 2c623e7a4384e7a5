#pragma once

#include <string_view>

/// The version of these headers.
#define LOCKSTEP_VERSION_MAJOR 0
#define LOCKSTEP_VERSION_MINOR 2
#define LOCKSTEP_VERSION_PATCH 0
/// The same version as one number for comparisons: 200 for 0.2.0.
#define LOCKSTEP_VERSION \
  (LOCKSTEP_VERSION_MAJOR * 10000 + LOCKSTEP_VERSION_MINOR * 100 + LOCKSTEP_VERSION_PATCH)

namespace lockstep::inline v0_2 {

/// The version of the library that the program is linked with, such as "0.2.0". It differs from the
/// macros if the headers and the library come from different installations.
std::string_view version();

}  // namespace lockstep
