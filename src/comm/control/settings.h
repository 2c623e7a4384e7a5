#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/version.h"

namespace lockstep::inline v0_2::control {

/// Of a rank that has gone silent for so long the host is given up.
inline constexpr std::chrono::milliseconds default_heartbeat = std::chrono::seconds(2);

/// How one rank connects to the others.
struct Settings {
  int rank = 0;
  int size = 1;
  std::string host = {};  ///< what this rank's host is called in messages
  /// Equal for processes that reach one another's loopback.
  std::uint64_t network = 0;
  std::string interface = {};  ///< the only one to be used; empty leaves that to the routes
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< until all have come
  std::chrono::milliseconds heartbeat = default_heartbeat;  ///< longest silence; rank 0's counts
  std::string version = std::string(lockstep::version());   ///< both ends are of the same
  /// Called every few milliseconds of waiting. An exception from it ends the wait.
  std::function<void()> look = [] {};
};

}  // namespace lockstep::control
