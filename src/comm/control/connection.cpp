#include "comm/control/connection.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::inline v0_2::control {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view opening = "LSc1";
/// Added to the limit for the kernel's timeout of a connection: about that of
/// net.ipv4.tcp_retries2=15, the default. A host that was lost for long still receives the failure.
constexpr auto kernel_timeout = std::chrono::minutes(15);
/// TCP_RTO_MAX_MS, which the headers of Linux before 6.15 lack, and its least value.
constexpr int tcp_rto_max_ms = 44, longest_until_resent = 1000;

struct Header {
  std::array<char, opening.size()> magic;
  Kind kind;
  std::uint16_t bytes;
};

/// Precedes the text in the payload of a failure.
struct Fault {
  std::int32_t rank;
  Failure::Kind kind;
};
static_assert(longest_failure_text + sizeof(Fault) == longest_payload);

constexpr std::size_t longest_payload_of(Kind kind) {
  return kind == Kind::answer ? longest_status_payload : longest_payload;
}

}  // namespace

Frame failure_frame(const Failure& failure) {
  const Fault fault{.rank = failure.rank, .kind = failure.kind};
  return {.kind = Kind::failed, .payload = bytes_of(fault) + failure.text};
}

std::optional<Failure> failure_in(const Frame& frame) {
  if (frame.kind != Kind::failed) return std::nullopt;
  Failure failure;
  Fault fault;
  if (frame.payload.size() < sizeof fault) return failure;
  std::memcpy(&fault, frame.payload.data(), sizeof fault);
  failure.rank = std::max(fault.rank, -1);
  failure.kind = detail::failure_kind(static_cast<std::int32_t>(fault.kind));
  failure.text = frame.payload.substr(sizeof fault);
  return failure;
}

std::string encode(const Frame& frame, FrameMac* mac) {
  auto payload = frame.payload.substr(0, longest_payload_of(frame.kind));
  if (mac != nullptr) mac->add(static_cast<std::uint16_t>(frame.kind), payload);
  Header header{
      .magic = {}, .kind = frame.kind, .bytes = static_cast<std::uint16_t>(payload.size())};
  std::ranges::copy(opening, header.magic.begin());
  return bytes_of(header) + payload;
}

std::optional<Frame> FrameReader::next() {
  const auto begins = std::string_view(bytes_).substr(0, opening.size());
  if (begins != opening.substr(0, begins.size()))
    throw CommError("the received bytes are not a Lockstep frame");
  if (bytes_.size() < sizeof(Header)) return std::nullopt;
  Header header;
  std::memcpy(&header, bytes_.data(), sizeof header);
  const std::size_t mac_bytes = mac_ ? FrameMac::bytes : 0;
  if (header.kind > last_kind || header.bytes > longest_payload_of(header.kind) + mac_bytes) {
    throw CommError("the received frame is of another Lockstep version");
  }
  const std::size_t whole = sizeof header + header.bytes;
  if (bytes_.size() < whole) return std::nullopt;
  Frame frame{.kind = header.kind, .payload = bytes_.substr(sizeof header, header.bytes)};
  if (mac_ && !(frame.kind == Kind::refused && mac_->begins()))
    mac_->remove(static_cast<std::uint16_t>(frame.kind), frame.payload);
  bytes_.erase(0, whole);
  return frame;
}

Connection::Connection(detail::Descriptor socket)
    : socket_(std::move(socket)), peer_(Address::peer(socket_.get())) {
  const int yes = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

void Connection::allow_silence(std::chrono::milliseconds limit) {
  const auto longest = std::min(limit + kernel_timeout, std::chrono::milliseconds(INT_MAX));
  const auto time = static_cast<int>(longest.count());
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &time, sizeof time);
  ::setsockopt(socket_.get(), IPPROTO_TCP, tcp_rto_max_ms, &longest_until_resent,
               sizeof longest_until_resent);
}

bool Connection::receive() {
  std::array<char, 2 * longest_payload> buffer;
  for (;;) {
    const auto got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got > 0) {
      reader_.add({buffer.data(), static_cast<std::size_t>(got)});
      return true;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    // A process that ends without reading all bytes resets the connection.
    error_ = got == 0 || errno == ECONNRESET || errno == EPIPE ? 0 : errno;
    return false;
  }
}

void Connection::send(const Frame& frame) {
  unsent_ += encode(frame, mac_ ? &*mac_ : nullptr);
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
    unsent_.clear();  // receive() reports the error
  }
  return true;
}

void flush(std::span<Connection* const> connections, std::chrono::milliseconds longest) {
  const auto until = Clock::now() + longest;
  for (;;) {
    std::vector<pollfd> waiting;
    for (auto* connection : connections) {
      if (!connection->flush())
        waiting.push_back({.fd = connection->fd(), .events = POLLOUT, .revents = 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (waiting.empty() || left <= 0) return;
    ::poll(waiting.data(), waiting.size(), static_cast<int>(left));
  }
}

std::optional<Frame> await_frame(Connection& from, Clock::time_point until) {
  for (bool open = true; open; open = from.receive()) {
    if (auto frame = from.next()) return frame;
    pollfd waiting{.fd = from.fd(), .events = POLLIN, .revents = 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) == 0) break;
  }
  return std::nullopt;
}

std::optional<Failure> await_failure(Connection& from, std::chrono::milliseconds longest) {
  const auto until = Clock::now() + longest;
  while (const auto frame = await_frame(from, until)) {
    if (auto failure = failure_in(*frame)) return failure;
  }
  return std::nullopt;
}

}  // namespace lockstep::control
