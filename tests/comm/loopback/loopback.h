#pragma once

#include <chrono>
#include <memory>

#include "comm/communicator.h"

namespace lockstep::testing {

/// Creates a world of one rank, whose operations copy memory of this process: the smallest backend.
/// timeout: longest wait of one operation.
std::shared_ptr<Communicator> create_loopback(std::chrono::milliseconds timeout);

}  // namespace lockstep::testing
