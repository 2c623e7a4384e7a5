#include "adapter/c10d_transport.h"

#include <stdexcept>
#include <utility>

// Note [Why receives are waited for first]
// A backend may move the bytes of a receive only while a thread waits for it, and a send then ends
// only once its receiver waits. Two ranks that both waited for their sends would wait forever. So a
// thread waits for its receives first, in the order in which they began. The direct reduction, the
// broadcast and the moves allow this: their messages begin after certain receives have ended. Only
// the receives of results also follow sends, and those begin once no other receive is pending. In a
// ring each sum begins after an earlier send, so two ranks could wait for each other's next sum.
// Groups over a c10d::Backend therefore use the direct algorithm.

namespace lockstep::inline v0_2::adapter {

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
