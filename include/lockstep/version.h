#pragma once

#include <string_view>

/// The version of these headers.
#define LOCKSTEP_VERSION_MAJOR 0
#define LOCKSTEP_VERSION_MINOR 1
#define LOCKSTEP_VERSION_PATCH 0
/// The same as one number, to compare: 100 for 0.1.0.
#define LOCKSTEP_VERSION \
  (LOCKSTEP_VERSION_MAJOR * 10000 + LOCKSTEP_VERSION_MINOR * 100 + LOCKSTEP_VERSION_PATCH)

namespace lockstep {

/// The version of the library that the program is linked with, as "0.1.0". It differs from the
/// macros when headers and library are of different installations.
std::string_view version();

}  // namespace lockstep
