#include "adapter/c10d_transport.h"

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "comm/messages/collective_protocol.h"
#include "comm/messages/receive_protocol.h"
#include "comm/messages/send_protocol.h"
#include "comm/messages/transport.h"
#include "core/text.h"

namespace lockstep::inline v0_2::adapter {

RequestThread::~RequestThread() {
  if (process_.in_child()) {
    thread_.detach();  // the thread exists only in the parent
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
// Lockstep uses only send() and recv() of a backend, with tags. They suffice for every group,
// including split ones, and for sums in rank order. Few backends can report without blocking
// whether a message has been sent; Gloo cannot. So operations run in threads that block. A thread
// runs one operation after another. A group has one thread for its collectives, one for sends to
// each member, and one for receives from each member.
//
// Each group has its own threads, so operations of different groups need no common order. The
// rank's own thread waits for a request thread, never for the backend, so it can time out.
//
// A timeout, a mismatch or a failed message fails the world. This rank then aborts its operations.
// No wait() returns before its thread has stopped using the caller's buffers. Every rank detects a
// mismatch by itself, with the same text. The store, if there is one, passes on all other failures.

namespace {

using detail::concat;

/// A request thread waits longer than the rank's own thread, whose timeout has the better error.
constexpr int thread_timeout_factor = 2;

std::string text_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

/// Stops the transport before the protocol is destroyed, because messages use the protocol's
/// memory.
class StopGuard {
 public:
  explicit StopGuard(messages::Transport& transport) : transport_(transport) {}
  ~StopGuard() { transport_.stop(); }
  StopGuard(const StopGuard&) = delete;
  StopGuard& operator=(const StopGuard&) = delete;

 private:
  messages::Transport& transport_;
};

/// Calls advance() after each message that ends, until it returns true.
template <class Advance>
void drive(messages::Transport& transport, const Advance& advance) {
  while (!advance()) {
    if (!transport.progress()) throw std::logic_error("the operation waits for no message");
  }
}

}  // namespace

void C10dRequest::run_protocol() {
  C10dTransport transport(
      *context_, thread_timeout_factor * detail::wait_limit(operation_, context_->timeout()),
      awaited_);
  const messages::GroupTransport group(*group_, transport);
  if (operation_.collective == Collective::send) {
    messages::SendProtocol protocol(group, operation_);
    const StopGuard stop(transport);
    protocol.begin();
    drive(transport, [&] {
      protocol.advance();
      return protocol.complete();
    });
    return;
  }
  if (operation_.collective == Collective::recv) {
    // This thread receives all messages of this peer, in order.
    messages::ReceiveProtocol receives(group);
    messages::Receive receive(operation_);
    const StopGuard stop(transport);
    receives.add(receive);
    drive(transport, [&] {
      receives.advance();
      return receive.complete();
    });
    return;
  }
  messages::CollectiveProtocol protocol(group, operation_);
  const StopGuard stop(transport);
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
    run_protocol();
    end(true);
    return;
  } catch (const messages::Mismatch& mismatch) {
    context_->fail({.kind = detail::Failure::Kind::mismatch,
                    .rank = mismatch.rank(),
                    .text = mismatch.what()});
  } catch (const std::exception& error) {
    // A failed rank publishes the cause before its connections close, so the store may have it.
    if (!context_->failed()) context_->poll_failure();
    const auto other = context_->look([&] { return awaited_; });
    context_->fail(
        {.rank = other.value_or(context_->rank()),
         .text = concat("rank ", context_->rank(),
                        other ? concat(", waiting for rank ", *other) : "", ": ", text_of(error))});
  }
  end(false);
}

void C10dRequest::end(bool complete) noexcept {
  context_->change([&] {
    complete_ = complete;
    ended_ = true;
  });
}

// Note [Why receives are waited for first]
// A backend may transfer the bytes of a receive only while a thread waits for it. A send then ends
// only when its receiver waits. Two ranks that both waited for their sends would deadlock. So a
// thread waits for its receives first, in the order in which they began. The direct reduction, the
// broadcast and the moves of whole parts allow this: their messages depend only on earlier
// receives. Pieces of parts (Pieces::of_parts) depend on earlier sends, so groups here have none.
// The receives of results also depend on sends, but they begin when no other receive is pending. In
// a ring each sum depends on an earlier send, so two ranks could wait for each other's next sum.
// Groups over a c10d::Backend therefore use the direct algorithm.

void C10dTransport::send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) {
  // c10d has no tensors over const memory. The backend only reads the memory of a send.
  const auto posted =
      context_.post(RankContext::Direction::send, const_cast<std::byte*>(data), bytes, to, tag);
  sends_.push_back({.posted = posted, .rank = to, .bytes = bytes, .done = std::move(done)});
}

void C10dTransport::receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) {
  const auto posted = context_.post(RankContext::Direction::receive, data, bytes, from, tag);
  receives_.push_back({.posted = posted, .rank = from, .bytes = bytes, .done = std::move(done)});
}

bool C10dTransport::progress() {
  auto& messages = receives_.empty() ? sends_ : receives_;
  if (messages.empty()) return false;
  const auto& first = messages.front();
  context_.look([&] { awaited_ = first.rank; });
  if (context_.failed()) throw std::runtime_error("the world has failed");
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
