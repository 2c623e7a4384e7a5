#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/tcp/tcp.h"
#include "core/launcher.h"

namespace lockstep::inline v0_2::detail {

/// A meeting whose rank 0 writes its offer into a store of PyTorch. A key that an earlier world
/// left there is overwritten, and the other ranks read it again until they have joined.
tcp::Meeting meet_by_store(c10::intrusive_ptr<c10d::Store> store, const std::string& key, int rank,
                           int size);

/// The same in the store of torchrun, at MASTER_ADDR and MASTER_PORT.
/// Throws: InvalidArgument if these are not set. CommError if the store does not answer.
tcp::Meeting meet_by_store_of_torchrun(const Launcher& launcher);

}  // namespace lockstep::detail
