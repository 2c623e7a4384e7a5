#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/control/address.h"
#include "comm/control/failure.h"
#include "core/process.h"

namespace lockstep::inline v0_2::control {

/// Kinds of messages on a control connection.
enum class Kind : std::uint16_t {
  hello,      ///< a rank identifies itself: Hello
  accepted,   ///< rank 0's answer, without a failure so far: Greeting
  refused,    ///< rank 0's reason; the connection ends
  all_here,   ///< heartbeats begin
  heartbeat,  ///< nothing else
  failed,     ///< the first cause; the world has ended
  timed_out,  ///< the same, because a wait lasted too long
  left        ///< this end takes part in nothing more; no failure
};

struct Frame {
  Kind kind;
  std::string payload = {};
};

/// The message that carries the first cause.
Frame told(const Failure& failure);

/// The failure of a message that told() made; empty for a message of another kind.
std::optional<Failure> failure_in(const Frame& frame);

/// The longest payload that is sent or taken.
inline constexpr std::size_t longest_payload = 4096;

/// The longest text of a failure that told() sends whole.
inline constexpr std::size_t longest_failure_text = longest_payload - 8;

/// The bytes of a frame; of a longer payload as much as is taken.
std::string encode(const Frame& frame);

/// Cuts a stream of bytes, in whatever pieces they come, into frames.
class FrameReader {
 public:
  void add(std::string_view bytes) { bytes_ += bytes; }
  /// The next whole frame, if it is here. Throws: CommError once bytes are no frame's.
  std::optional<Frame> next();

 private:
  std::string bytes_;
};

/// One TCP connection that carries frames; nothing blocks. For one thread.
class Connection {
 public:
  /// A connected socket that does not block.
  explicit Connection(detail::Descriptor socket);

  int fd() const { return socket_.get(); }
  const Address& peer() const { return peer_; }

  /// Takes in some of what has come. False once nothing more can.
  bool receive();
  /// Why nothing more can: errno of the network, or 0 where the other end closed.
  int error() const { return error_; }
  /// The next frame of what was received. Throws: CommError once bytes are no frame's.
  std::optional<Frame> next() { return reader_.next(); }

  /// Sends, or keeps what does not fit the socket yet; nothing once the connection has broken.
  void send(const Frame& frame);
  /// Sends what was kept. False while there is more.
  bool flush();
  bool flushed() const { return unsent_.empty(); }

 private:
  detail::Descriptor socket_;
  Address peer_;
  FrameReader reader_;
  std::string unsent_;
  int error_ = 0;
};

}  // namespace lockstep::control
