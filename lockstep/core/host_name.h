#pragma once

#include <string>

namespace lockstep::detail {

/// What this machine calls itself, for messages and names; "unknown" if it does not say.
std::string host_name();

}  // namespace lockstep::detail
