#include "adapter/c10d_transport.h"

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "comm/messages/collective_protocol.h"
#include "comm/messages/point_to_point_protocol.h"
#include "comm/messages/transport.h"
#include "core/text.h"

namespace lockstep::inline v0_2::adapter {

RequestThread::~RequestThread() {
  if (process_.in_child()) {
    thread_.detach();  // it runs in the parent only
    std::ignore = added_.release();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  added_->notify_all();
  thread_.join();
}

void RequestThread::add(std::shared_ptr<C10dRequest> request) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
  }
  added_->notify_all();
}

void RequestThread::run() {
  for (;;) {
    std::shared_ptr<C10dRequest> next;
    {
      std::unique_lock lock(mutex_);
      added_->wait(lock, [this] { return ending_ || !requests_.empty(); });
      if (requests_.empty()) return;
      next = std::move(requests_.front());
      requests_.pop_front();
    }
    next->run();
  }
}

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

// Note [Why receives are waited for first]
// A backend may move the bytes of a receive only while a thread waits for it, and a send then ends
// only once its receiver waits. Two ranks that both waited for their sends would wait forever. So a
// thread waits for its receives first, in the order in which they began. The direct reduction, the
// broadcast and the moves allow this: their messages begin after certain receives have ended. Only
// the receives of results also follow sends, and those begin once no other receive is pending. In a
// ring each sum begins after an earlier send, so two ranks could wait for each other's next sum.
// Groups over a c10d::Backend therefore use the direct algorithm.

void C10dTransport::send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) {
  // c10d has no tensors of const memory. The backend only reads what it sends.
  const auto posted =
      context_.post(RankContext::Way::send, const_cast<std::byte*>(data), bytes, to, tag);
  sends_.push_back({.posted = posted, .rank = to, .bytes = bytes, .done = std::move(done)});
}

void C10dTransport::receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) {
  const auto posted = context_.post(RankContext::Way::receive, data, bytes, from, tag);
  receives_.push_back({.posted = posted, .rank = from, .bytes = bytes, .done = std::move(done)});
}

bool C10dTransport::progress() {
  auto& messages = receives_.empty() ? sends_ : receives_;
  if (messages.empty()) return false;
  const auto& first = messages.front();
  context_.look([&] { awaited_ = first.rank; });
  if (context_.failed()) throw std::runtime_error("the world has ended");
  if (!(*first.posted)->wait(longest_)) throw std::runtime_error("the message was aborted");
  context_.release(first.posted);
  context_.look([&] { awaited_.reset(); });
  const auto message = std::move(messages.front());
  messages.pop_front();
  message.done(message.bytes);
  return true;
}

void C10dTransport::stop() noexcept {
  for (auto* messages : {&receives_, &sends_}) {
    for (const auto& message : *messages) context_.abort(message.posted);
    messages->clear();
  }
}

}  // namespace lockstep::adapter
