#pragma once

#include <chrono>
#include <optional>

#include "lockstep/group.h"

namespace lockstep {

struct InitOptions {
  std::optional<std::chrono::milliseconds> timeout =
      {};  ///< longest wait; default LOCKSTEP_TIMEOUT, else 10 minutes
  bool keep_pages =
      false;  ///< keep freed memory in this process instead of returning it to the kernel
};

/// The world that this process belongs to: that of `lockstep run`, or a world of one when started
/// alone. Every rank calls it once; returns when all have. Throws: InvalidArgument when called
/// again, inside spawn(), or under a launcher this build cannot join; CommError and TimeoutError as
/// a collective does.
Group init(const InitOptions& options = {});

}  // namespace lockstep
