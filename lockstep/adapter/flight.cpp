#include "lockstep/adapter/flight.h"

#include <exception>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

// Note [How a group over a c10d::Backend runs]
// Of a backend only send() and recv() with tags are used: they are what every group, split ones
// too, can be made of, and what a sum in the order of ranks needs. Whether a message has gone can
// be asked of few backends without blocking, Gloo not among them; so operations run in threads that
// block, one operation after another in each lane: a lane for the collectives of a group, and one
// for the messages from or to each member. Groups have lanes of their own, so that their
// operations need no common order. The rank's own thread waits for a lane, never for the backend,
// and can give up.
//
// A wait that lasts too long, a mismatch and a failed message end the world. What this rank has
// under way is aborted then, and no wait returns before its lane has let go of the caller's
// buffers. The others find a mismatch by themselves, in the same words; anything else is told
// through the store, if there is one.

namespace lockstep::adapter {
namespace {

using detail::concat;

/// A lane waits for longer than the rank's own thread, which knows what to say.
constexpr int patience_of_lanes = 2;

std::string text_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace

void Flight::run() noexcept {
  auto& endpoint = channel_->endpoint();
  if (endpoint.failed()) return end(false);
  try {
    fly();
    end(true);
    return;
  } catch (const CommError& difference) {
    endpoint.fail({.text = difference.what()});
  } catch (const std::exception& error) {
    // Who has failed says why before its connections close.
    if (!endpoint.failed()) endpoint.ask();
    const auto other = endpoint.look([&] { return awaited_; });
    endpoint.fail(
        {.text = concat("rank ", endpoint.rank(),
                        other ? concat(", waiting for rank ", *other) : "", ": ", text_of(error))});
  }
  end(false);
}

void Flight::end(bool complete) noexcept {
  channel_->endpoint().change([&] {
    complete_ = complete;
    over_ = true;
  });
}

void Flight::exchange(std::span<const Message> messages) {
  auto& endpoint = channel_->endpoint();
  endpoint.exchange(
      messages, patience_of_lanes * detail::wait_limit(operation_, endpoint.timeout()), awaited_);
}

}  // namespace lockstep::adapter
