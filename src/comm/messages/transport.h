#pragma once

#include <cstddef>
#include <functional>

namespace lockstep::inline v0_2::messages {

/// Non-blocking messages of bytes between ranks: all that the collectives of this folder need of a
/// network. A transport has no groups and no collectives.
///
/// Messages of one pair of ranks and one tag are received in the order in which they were sent. The
/// receiver offers a buffer of the message's length. Only an announcement may be shorter than its
/// buffer, and only where MessageGroup::eager_bytes is not 0. No message has 0 bytes. Errors are
/// thrown by any function.
class Transport {
 public:
  /// Called by progress() once a message is complete; bytes is the received length. It may begin
  /// other messages.
  using Done = std::function<void(std::size_t bytes)>;

  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Complete once the memory may be written again, which need not wait for the receiver.
  virtual void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) = 0;
  virtual void receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) = 0;

  /// Moves bytes, and calls the Done of messages that are complete. True if any was. A transport
  /// that cannot poll blocks until a message is complete, and waits for receives before sends.
  virtual bool progress() = 0;

  /// Stops waiting for any message, after a failure. No Done is called any more.
  virtual void stop() noexcept = 0;

 protected:
  Transport() = default;
};

}  // namespace lockstep::messages
