#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "comm/control/joining.h"
#include "comm/messages/options.h"

namespace lockstep::inline v0_2::messages {
class MessageRankContext;
}

namespace lockstep::inline v0_2::tcp {

/// How the ranks of a world find one another. Rank 0 listens, and the others connect to it.
struct Meeting {
  int rank = 0;
  int size = 1;
  std::uint16_t port = 0;  ///< rank 0 listens on this port; 0: on any
  int listening = -1;      ///< rank 0's listening, non-blocking socket in place of a port, or -1
  std::optional<control::Token> token = {};  ///< of the offer; default: random
  /// Called by rank 0 with its offer, for the others.
  std::function<void(const control::Offer&)> publish = [](const control::Offer&) {};
  control::OfferSource find = {};  ///< rank 0's offer; called by the others until they have joined
  /// Called every 20 ms until all ranks have joined. An exception from it ends the wait.
  std::function<void()> on_wait = [] {};
};

/// This process's communicator over all ranks of a world, which exchange messages over TCP. Every
/// process calls it once; returns when all have. Lockstep waits at the end of a process with exit
/// code 0 until all ranks have left the world.
/// Throws: CommError and TimeoutError, on every rank that can learn of it, if a rank cannot join.
/// InvalidArgument if ranks have different algorithms.
std::shared_ptr<Communicator> create(const messages::Options& options, const Meeting& meeting);

/// Leaves the worlds that create() has made, and closes their connections. Returns when all ranks
/// have left. For ranks that have found out that they need none.
void leave_worlds();

/// Keeps a world until leave_worlds(), which this process also calls at its end with exit code 0.
/// With another one, the ends of its connections tell the other ranks. Simulated processes have
/// functions of their own in place of worlds.cpp. Ends the worlds that all ranks have left, or that
/// have failed.
void keep(std::shared_ptr<messages::MessageRankContext> world);

}  // namespace lockstep::tcp
