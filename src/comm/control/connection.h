#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "comm/control/address.h"
#include "comm/control/handshake.h"
#include "core/failure.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::control {

using detail::Failure;

/// How often ranks that join look for new connections, answers and failures.
inline constexpr auto poll_interval = std::chrono::milliseconds(20);

/// Kinds of frames on a control connection.
enum class Kind : std::uint16_t {
  hello,      ///< a rank identifies itself; payload: Hello, and its MAC
  accepted,   ///< rank 0 admits the rank; payload: Greeting
  refused,    ///< rank 0 refuses the rank; payload: the reason
  all_here,   ///< all ranks have joined; heartbeats begin
  heartbeat,  ///< no payload
  failed,     ///< the world has failed; payload: the first cause
  left,       ///< the rank has left the world without a failure
  question,   ///< `lockstep status` asks (StatusRelay)
  answer,     ///< a part of the answer to a question
  offer,      ///< a rank's Offer, from the rank that gathers
  ending,     ///< from now on, the end of the connection is no failure
  challenge   ///< the first frame of the rank that gathers; payload: a Nonce
};
inline constexpr Kind last_kind = Kind::challenge;

struct Frame {
  Kind kind;
  std::string payload = {};
};

/// The frame for a failure.
Frame failure_frame(const Failure& failure);

/// The failure in a frame of failure_frame(); nullopt for other frames.
std::optional<Failure> failure_in(const Frame& frame);

/// The longest payload that is sent or accepted.
/// Units: bytes.
inline constexpr std::size_t longest_payload = 4096;

/// The longest payload of an answer to a question.
/// Units: bytes.
inline constexpr std::size_t longest_status_payload = 65535 - FrameMac::bytes;

/// The longest text of a failure that failure_frame() does not truncate.
/// Units: bytes.
inline constexpr std::size_t longest_failure_text = longest_payload - 8;

/// The bytes of a frame, with a MAC if there is one. Truncates a payload that is too long.
std::string encode(const Frame& frame, FrameMac* mac = nullptr);

/// Parses frames from a stream of bytes, which may arrive in any pieces.
class FrameReader {
 public:
  void add(std::string_view bytes) { bytes_ += bytes; }
  /// From now on, frames have a MAC; only a refusal as the first of them may have none.
  void check(const FrameMac& mac) { mac_ = mac; }
  /// The next complete frame, if it has arrived.
  /// Throws: CommError for bytes that are not a frame, and for a wrong MAC.
  std::optional<Frame> next();
  /// Gives the bytes after the last frame to the caller.
  std::string take_rest() { return std::exchange(bytes_, {}); }

 private:
  std::string bytes_;
  std::optional<FrameMac> mac_;
};

/// A connection for frames, over TCP or a unix socket. No call blocks. Used by one thread.
class Connection {
 public:
  /// Takes a connected, non-blocking socket.
  explicit Connection(detail::Descriptor socket);

  int fd() const { return socket_.get(); }
  const Address& peer() const { return peer_; }

  /// Keeps the kernel from breaking the connection before the heartbeat limit, whatever
  /// net.ipv4.tcp_retries2 is. Since Linux 6.15, lost bytes are sent again at least every second.
  void allow_silence(std::chrono::milliseconds limit);

  /// From now on, adds these MACs to frames that it sends, and checks those that it receives.
  void authenticate(const FrameMac& sent, const FrameMac& received) {
    mac_ = sent;
    reader_.check(received);
  }

  bool authenticated() const { return mac_.has_value(); }

  /// Receives available bytes. False if the connection is closed or broken.
  bool receive();
  /// After receive() returned false: errno of the network, or 0 if the other side has closed the
  /// connection.
  int error() const { return error_; }
  /// The next frame that was received.
  /// Throws: as FrameReader::next().
  std::optional<Frame> next() { return reader_.next(); }

  /// Sends a frame. Queues bytes for which the socket has no space. Does nothing on a broken
  /// connection.
  void send(const Frame& frame);
  /// Sends queued bytes. False if some remain.
  bool flush();

  /// Gives the socket to the caller, with the bytes that it has received after the last frame.
  std::pair<detail::Descriptor, std::string> release() {
    return {std::move(socket_), reader_.take_rest()};
  }

 private:
  detail::Descriptor socket_;
  Address peer_;
  FrameReader reader_;
  std::optional<FrameMac> mac_;
  std::string unsent_;
  int error_ = 0;
};

/// Sends the queued bytes of all connections. Waits for at most `longest`.
void flush(std::span<Connection* const> connections, std::chrono::milliseconds longest);

/// Waits for the next frame. nullopt at `until`, and if the connection ends before.
/// Throws: as Connection::next().
std::optional<Frame> await_frame(Connection& from, std::chrono::steady_clock::time_point until);

/// Waits for a frame with a failure, and skips others. nullopt after `longest`, and if the
/// connection ends before.
/// Throws: as Connection::next().
std::optional<Failure> await_failure(Connection& from, std::chrono::milliseconds longest);

}  // namespace lockstep::control
