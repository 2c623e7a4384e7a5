#pragma once

#include <string>

#include "core/text.h"

namespace lockstep::inline v0_2::detail {

/// The oldest version of NCCL that Lockstep works with, as ncclGetVersion() returns it.
inline constexpr int oldest_nccl_version = 21900;

/// "2.19.4" for 21904, and "2.7.8" for 2708: NCCL's number has another form since 2.9.
inline std::string nccl_version_text(int version) {
  const int major = version < 10000 ? 1000 : 10000;
  return concat(version / major, '.', version % major / 100, '.', version % 100);
}

}  // namespace lockstep::detail
