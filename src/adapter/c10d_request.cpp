#include "adapter/c10d_request.h"

#include <exception>

#include "core/text.h"
#include "lockstep/error.h"

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

}  // namespace

void C10dRequest::run() noexcept {
  auto& context = channel_->context();
  if (context.failed()) return end(false);
  try {
    fly();
    end(true);
    return;
  } catch (const CommError& difference) {
    context.fail({.text = difference.what()});
  } catch (const std::exception& error) {
    // A failed rank publishes the cause before its connections close, so it is asked for first.
    if (!context.failed()) context.ask();
    const auto other = context.look([&] { return awaited_; });
    context.fail(
        {.text = concat("rank ", context.rank(), other ? concat(", waiting for rank ", *other) : "",
                        ": ", text_of(error))});
  }
  end(false);
}

void C10dRequest::end(bool complete) noexcept {
  channel_->context().change([&] {
    complete_ = complete;
    over_ = true;
  });
}

void C10dRequest::exchange(std::span<const Message> messages) {
  auto& context = channel_->context();
  context.exchange(
      messages, patience_of_threads * detail::wait_limit(operation_, context.timeout()), awaited_);
}

}  // namespace lockstep::adapter
