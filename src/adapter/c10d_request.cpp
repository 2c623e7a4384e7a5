#include "adapter/c10d_request.h"

#include <cstdint>
#include <exception>
#include <stdexcept>

#include "adapter/c10d_transport.h"
#include "comm/messages/collective_protocol.h"
#include "comm/messages/mismatch.h"
#include "comm/messages/point_to_point_protocol.h"
#include "core/text.h"

// Note [How a group over a c10d::Backend runs]
// Of a backend only send() and recv() with tags are used. Every group, split ones too, can be made
// of them, and a sum in the order of ranks needs them. Few backends say without blocking whether a
// message has been sent; Gloo does not. So operations run in threads that block, one operation
// after another in each thread. A group has a thread for its collectives, and one for the messages
// from or to each member.
//
// Groups have threads of their own, so that their operations need no common order. The rank's own
// thread waits for a thread, never for the backend, and can give up.
//
// A wait that lasts too long, a mismatch and a failed message end the world. This rank then aborts
// its running operations. No wait returns before its thread has let go of the caller's buffers. The
// other ranks find a mismatch by themselves, with the same text. The store passes any other failure
// on, if there is one.

namespace lockstep::inline v0_2::adapter {
namespace {

using detail::concat;

/// A thread waits for longer than the rank's own thread, which knows what to say.
constexpr int patience_of_threads = 2;

std::string text_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

/// Stops the transport before the protocol, whose memory its messages use, is destroyed.
class StopAtEnd {
 public:
  explicit StopAtEnd(messages::Transport& transport) : transport_(transport) {}
  ~StopAtEnd() { transport_.stop(); }
  StopAtEnd(const StopAtEnd&) = delete;
  StopAtEnd& operator=(const StopAtEnd&) = delete;

 private:
  messages::Transport& transport_;
};

/// Calls advance(), which returns whether it is complete, whenever a message has ended.
template <class Advance>
void drive(messages::Transport& transport, const Advance& advance) {
  while (!advance()) {
    if (!transport.progress()) throw std::logic_error("the operation waits for no message");
  }
}

}  // namespace

void C10dRequest::move_bytes() {
  C10dTransport transport(*context_,
                          patience_of_threads * detail::wait_limit(operation_, context_->timeout()),
                          awaited_);
  const messages::GroupTransport group(*group_, transport);
  if (operation_.is_message()) {
    // The thread of this peer receives one message after another, so this is the next.
    std::uint64_t received = operation_.sequence - 1;
    messages::PointToPointProtocol protocol(group, operation_, received);
    const StopAtEnd stop(transport);
    protocol.begin();
    drive(transport, [&] {
      protocol.advance();
      return protocol.complete();
    });
    return;
  }
  messages::CollectiveProtocol protocol(group, operation_);
  const StopAtEnd stop(transport);
  protocol.announce();
  drive(transport, [&] {
    protocol.compare();
    protocol.advance();
    return protocol.complete();
  });
  worked_ = protocol.worked();
}

void C10dRequest::run() noexcept {
  if (context_->failed()) return end(false);
  try {
    move_bytes();
    end(true);
    return;
  } catch (const messages::Mismatch& mismatch) {
    context_->fail({.text = mismatch.what(), .rank = mismatch.rank()});
  } catch (const std::exception& error) {
    // A failed rank publishes the cause before its connections close, so it is asked for first.
    if (!context_->failed()) context_->ask();
    const auto other = context_->look([&] { return awaited_; });
    context_->fail(
        {.text = concat("rank ", context_->rank(),
                        other ? concat(", waiting for rank ", *other) : "", ": ", text_of(error)),
         .rank = other.value_or(context_->rank())});
  }
  end(false);
}

void C10dRequest::end(bool complete) noexcept {
  context_->change([&] {
    complete_ = complete;
    over_ = true;
  });
}

}  // namespace lockstep::adapter
