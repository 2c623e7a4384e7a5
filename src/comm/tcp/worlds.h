#pragma once

#include <memory>

#include "comm/messages/message_rank_context.h"

namespace lockstep::inline v0_2::tcp {

/// Keeps a world until leave_worlds(), which this process also calls at its end with exit code 0.
/// With another one, the ends of its connections tell the other ranks. Simulated processes have
/// functions of their own in place of this file. Ends the worlds that all ranks have left, or that
/// have failed.
void keep(std::shared_ptr<messages::MessageRankContext> world);

}  // namespace lockstep::tcp
