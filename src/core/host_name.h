#pragma once

#include <string>

namespace lockstep::inline v0_2::detail {

/// This machine's host name, for messages and names; "unknown" if it has none.
std::string host_name();

}  // namespace lockstep::detail
