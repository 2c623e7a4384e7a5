#include "comm/control/connection.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

namespace lockstep::inline v0_2::control {

Connection::Connection(detail::Descriptor socket)
    : socket_(std::move(socket)), peer_(Address::peer(socket_.get())) {
  const int yes = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

bool Connection::receive() {
  std::array<char, 2 * longest_payload> room;
  for (;;) {
    const auto got = ::recv(socket_.get(), room.data(), room.size(), 0);
    if (got > 0) {
      reader_.add({room.data(), static_cast<std::size_t>(got)});
      return true;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    // A process that ends with bytes unread resets the connection.
    error_ = got == 0 || errno == ECONNRESET || errno == EPIPE ? 0 : errno;
    return false;
  }
}

void Connection::send(const Frame& frame) {
  unsent_ += encode(frame);
  flush();
}

bool Connection::flush() {
  while (!unsent_.empty()) {
    const auto sent = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      unsent_.erase(0, static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    unsent_.clear();  // what broke it shows when reading
  }
  return true;
}

}  // namespace lockstep::control
