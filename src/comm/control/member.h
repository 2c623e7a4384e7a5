#pragma once

#include <chrono>
#include <string>

#include "comm/control/connection.h"

namespace lockstep::inline v0_2::control {

/// Another rank that this one has a connection to.
struct Member {
  Connection connection;
  int rank = 0;
  std::string host = {};                  ///< as it is called in messages
  std::chrono::milliseconds heartbeat{};  ///< longest silence that is agreed on
};

}  // namespace lockstep::control
