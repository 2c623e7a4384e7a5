#include "comm/tcp/tcp_transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "comm/control/address.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How messages are sent in streams]
// Each pair of ranks has one stream. A message is a header and its bytes, so that messages of a
// pair arrive in the order in which they were sent. A send writes as much as the socket takes, and
// progress() writes the rest. progress() reads every stream that has bytes, whether a receive waits
// for them or not: a message behind them may be the one that a receive waits for. A message without
// a receive is copied into memory of its own. Reductions send pieces, and no more than a window of
// them before the other side answers, so such memory is short; a send() of the program may be long.
// A read ends in the memory of the receive and goes on in a buffer: one call takes the rest of a
// long message and the short ones behind it.
// A stream ends when its rank ends. The control connection of that rank ends at the same time, and
// says more, so an end here becomes an error only when no failure came for a while.
// Heartbeats go to rank 0 alone. A link between two other hosts may fail, so a stream whose other
// side is silent for four times the limit of heartbeats ends, too. An idle stream is silent for
// once the limit, until the kernel's first keep-alive; an outage may last as long, and it may take
// the same time until bytes are sent again. Keep-alives also show firewalls that the stream is
// used.

namespace lockstep::inline v0_2::tcp {
namespace {

using detail::concat;
using Clock = std::chrono::steady_clock;

constexpr std::size_t buffer_bytes = 64 << 10;
/// Reads of one stream before others are read.
constexpr int reads_at_once = 16;
/// Messages that one call writes.
constexpr std::size_t writes_at_once = 16;
/// Time until the end of a stream is an error, unless the control connections have named one.
constexpr auto end_timeout = std::chrono::seconds(2);
/// Times the limit of heartbeats: the silence that ends a stream.
constexpr int limits_of_silence = 4;
/// The limits that the kernel accepts for keep-alives.
constexpr auto least_limit = std::chrono::seconds(1), longest_limit = std::chrono::seconds(32767);

/// Lets the kernel ask the other side of an idle stream whether it is there, and end the stream
/// after limits_of_silence times the limit.
void keep_alive(const detail::Descriptor& stream, std::chrono::seconds limit) {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(stream.get(), level, option, &value, sizeof value);
  };
  const auto interval = static_cast<int>(limit.count());
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set(IPPROTO_TCP, TCP_KEEPCNT, limits_of_silence - 1);
}

}  // namespace

TcpTransport::TcpTransport(int rank, int size, int local_size, std::chrono::milliseconds limit)
    : buffer_(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes)),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      limit_(
          std::clamp(std::chrono::ceil<std::chrono::seconds>(limit), least_limit, longest_limit)) {
  rank_ = rank;
  size_ = size;
  local_size_ = local_size;
  last_tag_ = INT_MAX;
  if (!events_ || !wake_event_) {
    throw CommError(concat("tcp: rank ", rank, " cannot watch streams: ", std::strerror(errno)));
  }
  epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<std::uint64_t>(size)}};
  ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, wake_event_.get(), &event);
  peers_.resize(static_cast<std::size_t>(size));
}

void TcpTransport::connect(int other, detail::Descriptor stream, std::string_view received) {
  const int on = 1;
  ::setsockopt(stream.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  keep_alive(stream, limit_);
  peer(other).address = control::Address::peer(stream.get()).text();
  peer(other).stream = std::move(stream);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<std::uint64_t>(other)}};
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, peer(other).stream.get(), &event) != 0) {
    throw CommError(concat("tcp: rank ", rank_, " cannot watch a stream: ", std::strerror(errno)));
  }
  take(other, reinterpret_cast<const std::byte*>(received.data()), received.size());
}

// Longer pieces need fewer system calls. The next rank of a ring receives shorter ones sooner.
messages::Pieces TcpTransport::pieces(int /*hosts*/) const {
  return {.bytes = 256 << 10, .window = 4, .of_parts = true};
}

void TcpTransport::send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) {
  if (to == rank_) {
    const Header header{.bytes = bytes, .tag = tag};
    take(rank_, reinterpret_cast<const std::byte*>(&header), sizeof header);
    take(rank_, data, bytes);
    finished_.add(std::move(done), bytes);
    return;
  }
  auto& unsent = peer(to).unsent;
  unsent.push_back({.header = {.bytes = bytes, .tag = tag}, .data = data, .done = std::move(done)});
  if (unsent.size() == 1) write(to);
}

void TcpTransport::receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) {
  auto& waiting = queues_[messages::key_of(from, tag)];
  Posted posted{.data = data, .bytes = bytes, .done = std::move(done)};
  if (waiting.arrived.empty()) {
    waiting.posted.push_back(std::move(posted));
    return;
  }
  const auto message = std::move(waiting.arrived.front());
  waiting.arrived.pop_front();
  if (message->missing > 0) {
    message->receive = std::move(posted);
    return;
  }
  std::memcpy(data, message->data.get(), message->bytes);
  finished_.add(std::move(posted.done), message->bytes);
}

bool TcpTransport::progress() {
  std::array<epoll_event, 64> ready;
  const int count = ::epoll_wait(events_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    const auto& event = ready[static_cast<std::size_t>(i)];
    const int other = static_cast<int>(event.data.u64);
    if (other == size_) {
      std::uint64_t woken = 0;
      [[maybe_unused]] const auto got = ::read(wake_event_.get(), &woken, sizeof woken);
      continue;
    }
    if ((event.events & EPOLLOUT) != 0) write(other);
    if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read(other);
  }
  check_silent();
  if (closed_ > 0) check_closed();
  return finished_.call() || count > 0;
}

void TcpTransport::write(int to) {
  auto& other = peer(to);
  while (!other.unsent.empty() && !other.closed) {
    std::array<iovec, 2 * writes_at_once> parts;
    std::size_t used = 0;
    for (std::size_t i = 0; i < std::min(other.unsent.size(), writes_at_once); ++i) {
      auto& message = other.unsent[i];
      const auto add = [&](const void* begin, std::size_t bytes, std::size_t before) {
        const std::size_t sent = std::min(message.sent - std::min(message.sent, before), bytes);
        if (sent == bytes) return;
        parts[used++] = {const_cast<char*>(static_cast<const char*>(begin)) + sent, bytes - sent};
      };
      add(&message.header, sizeof message.header, 0);
      add(message.data, message.header.bytes, sizeof message.header);
    }
    msghdr call{};
    call.msg_iov = parts.data();
    call.msg_iovlen = used;
    const auto written = ::sendmsg(other.stream.get(), &call, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return watch(to, true);
    if (written < 0) return close(to, errno);
    auto left = static_cast<std::size_t>(written);
    while (left > 0) {
      auto& message = other.unsent.front();
      const std::size_t whole = sizeof message.header + message.header.bytes;
      const std::size_t part = std::min(left, whole - message.sent);
      message.sent += part;
      left -= part;
      if (message.sent < whole) break;
      finished_.add(std::move(message.done), message.header.bytes);
      other.unsent.pop_front();
    }
  }
  if (other.awaits_space) watch(to, false);
}

void TcpTransport::watch(int rank, bool for_space) {
  auto& other = peer(rank);
  if (std::exchange(other.awaits_space, for_space) == for_space) return;
  epoll_event event{.events = EPOLLIN | (for_space ? EPOLLOUT : 0U),
                    .data = {.u64 = static_cast<std::uint64_t>(rank)}};
  ::epoll_ctl(events_.get(), EPOLL_CTL_MOD, other.stream.get(), &event);
}

void TcpTransport::read(int from) {
  auto& other = peer(from);
  for (int i = 0; i < reads_at_once && !other.closed; ++i) {
    std::array<iovec, 2> parts{iovec{other.data, other.missing},
                               iovec{buffer_.get(), buffer_bytes}};
    const bool direct = other.missing > 0;
    const std::size_t asked = other.missing + buffer_bytes;
    const auto got = ::readv(other.stream.get(), parts.data() + (direct ? 0 : 1), direct ? 2 : 1);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got < 0) return close(from, errno);
    if (got == 0) return close(from, 0);
    const auto bytes = static_cast<std::size_t>(got);
    const std::size_t to_data = std::min(bytes, other.missing);
    if (direct) advance_message(other, to_data);
    take(from, buffer_.get(), bytes - to_data);
    if (bytes < asked) return;
  }
}

void TcpTransport::take(int from, const std::byte* data, std::size_t bytes) {
  auto& other = peer(from);
  while (bytes > 0) {
    std::size_t part = 0;
    if (other.missing > 0) {
      part = std::min(bytes, other.missing);
      std::memcpy(other.data, data, part);
      advance_message(other, part);
    } else {
      part = std::min(bytes, sizeof other.header - other.header_bytes);
      std::memcpy(reinterpret_cast<std::byte*>(&other.header) + other.header_bytes, data, part);
      other.header_bytes += part;
      if (other.header_bytes == sizeof other.header) begin_message(from);
    }
    data += part;
    bytes -= part;
  }
}

void TcpTransport::begin_message(int from) {
  auto& other = peer(from);
  const auto [bytes, tag] = other.header;
  other.header_bytes = 0;
  auto found = queues_.find(messages::key_of(from, tag));
  if (found == queues_.end() || found->second.posted.empty()) {
    const auto anyone_queue = queues_.find(messages::key_of(anyone, tag));
    if (anyone_queue != queues_.end()) found = anyone_queue;
  }
  if (found != queues_.end() && !found->second.posted.empty()) {
    other.receive = std::move(found->second.posted.front());
    found->second.posted.pop_front();
    if (bytes > other.receive.bytes) {
      throw CommError(concat("tcp: rank ", rank_, " got a message of ", bytes, " bytes from rank ",
                             from, ", expected at most ", other.receive.bytes));
    }
    other.data = other.receive.data;
  } else {
    other.early = std::make_shared<Arrived>();
    other.early->data = std::make_unique_for_overwrite<std::byte[]>(bytes);
    other.early->bytes = bytes;
    other.early->missing = bytes;
    other.data = other.early->data.get();
    auto& waiting = found != queues_.end() ? found->second : queues_[messages::key_of(from, tag)];
    waiting.arrived.push_back(other.early);
  }
  other.missing = bytes;
}

void TcpTransport::advance_message(Peer& other, std::size_t bytes) {
  other.data += bytes;
  other.missing -= bytes;
  if (other.missing > 0) return;
  if (other.early == nullptr) {
    finished_.add(std::move(other.receive.done), other.header.bytes);
    return;
  }
  const auto message = std::exchange(other.early, nullptr);
  message->missing = 0;
  if (!message->receive) return;
  std::memcpy(message->receive->data, message->data.get(), message->bytes);
  finished_.add(std::move(message->receive->done), message->bytes);
}

void TcpTransport::close(int rank, int code) {
  auto& other = peer(rank);
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, other.stream.get(), nullptr);
  other.closed = Clock::now();
  other.error = code;
  ++closed_;
}

void TcpTransport::check_closed() {
  const auto now = Clock::now();
  for (int other = 0; other < size_; ++other) {
    const auto& one = peer(other);
    // A rank that has left has sent all its messages. No receive waits for it.
    const bool in_message = one.header_bytes > 0 || one.missing > 0;
    const bool is_used = one.error != 0 || in_message || !one.unsent.empty();
    if (!one.closed || !is_used || now - *one.closed < end_timeout) continue;
    throw CommError(
        concat("tcp: the stream of rank ", rank_, " to rank ", other, " at ", one.address,
               " ended: ", one.error != 0 ? std::strerror(one.error) : "the other side closed it"));
  }
}

void TcpTransport::check_silent() {
  const auto now = Clock::now();
  if (now < next_check_) return;
  next_check_ = now + std::chrono::milliseconds(limit_) / 2;
  for (int other = 0; other < size_; ++other) {
    auto& one = peer(other);
    tcp_info state{};
    socklen_t length = sizeof state;
    if (!one.stream || one.closed ||
        ::getsockopt(one.stream.get(), IPPROTO_TCP, TCP_INFO, &state, &length) != 0) {
      continue;
    }
    const std::chrono::milliseconds silent(state.tcpi_last_ack_recv);
    if (state.tcpi_unacked > 0 && silent > limits_of_silence * limit_) close(other, ETIMEDOUT);
  }
}

void TcpTransport::stop() noexcept {
  queues_.clear();
  finished_.clear();
  for (auto& other : peers_) {
    other.unsent.clear();
    other.stream = {};
    other.closed = Clock::now();
  }
}

void TcpTransport::sleep(std::chrono::nanoseconds longest) {
  if (!finished_.empty()) return;
  detail::await_event(events_.get(), longest);
}

void TcpTransport::interrupt() noexcept {
  const std::uint64_t wake = 1;
  [[maybe_unused]] const auto written = ::write(wake_event_.get(), &wake, sizeof wake);
}

}  // namespace lockstep::tcp
