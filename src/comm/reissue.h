#pragma once

#include "comm/communicator.h"

namespace lockstep::inline v0_2::detail {

/// Issues the operation in another group of the same ranks, with the same buffers.
Work reissue(Communicator& group, const Operation& operation);

}  // namespace lockstep::detail
