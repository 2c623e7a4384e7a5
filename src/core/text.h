#pragma once

#include <sstream>
#include <string>

namespace lockstep::inline v0_2::detail {

/// All arguments as one string, each by its operator<<. For messages, never for hot paths.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

}  // namespace lockstep::detail
