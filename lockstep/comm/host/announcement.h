#pragma once

#include <cstdint>
#include <string>

#include "lockstep/comm/host/layout.h"
#include "lockstep/comm/operation.h"

namespace lockstep::host {

/// Equal for operations that belong together, different for others with all likelihood.
std::uint64_t fingerprint(const Operation& operation);

/// Writes all of a post but its number.
void announce(Post& post, const Operation& operation, std::uint64_t offset);

/// "all_reduce sum float32 [20, 1, 5, 5]", for messages.
std::string describe(const Post& post);

}  // namespace lockstep::host
