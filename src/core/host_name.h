#pragma once

#include <string>

namespace lockstep::detail {

/// This machine's host name, for messages and names; "unknown" if it has none.
std::string host_name();

}  // namespace lockstep::detail
