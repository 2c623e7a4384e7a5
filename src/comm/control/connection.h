#pragma once

#include <optional>
#include <string>

#include "comm/control/address.h"
#include "comm/control/frame.h"
#include "core/descriptor.h"

namespace lockstep::inline v0_2::control {

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
