#include "comm/control/status_question.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "comm/control/status_relay.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::control {
namespace {

using Clock = std::chrono::steady_clock;

detail::Descriptor connect_to(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() > sizeof address.sun_path - 1) return {};
  name.copy(address.sun_path + 1, name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  detail::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return {};
  }
  // Another user may have taken the name.
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool is_own = ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
                      peer.uid == ::geteuid();
  return is_own ? std::move(socket) : detail::Descriptor();
}

template <class Value>
Value value_at(std::string_view bytes, std::size_t at) {
  Value value{};
  if (at + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void add_part(HostsAnswer& answer, AnswerPart part, std::string_view bytes) {
  constexpr auto word = sizeof(std::int32_t);
  if (part == AnswerPart::record) {
    answer.records.emplace_back(bytes);
  } else if (part == AnswerPart::suspected) {
    answer.suspicions.emplace_back(bytes);
  } else if (part == AnswerPart::all_asked) {
    answer.is_complete = true;  // unless a host does not answer
  } else if (part == AnswerPart::end) {
    for (auto& host : answer.hosts) {
      if (host.name == bytes) host.has_answered = true;
    }
  } else if (part == AnswerPart::host) {
    const auto count = std::min<std::size_t>(
        static_cast<std::uint32_t>(value_at<std::int32_t>(bytes, 0)), bytes.size() / word);
    HostsAnswer::Host host;
    for (std::size_t i = 0; i < count; ++i) {
      host.ranks.push_back(value_at<std::int32_t>(bytes, (1 + i) * word));
    }
    host.name = bytes.substr(std::min(bytes.size(), (1 + count) * word));
    const auto known = std::ranges::find(answer.hosts, host.name, &HostsAnswer::Host::name);
    if (known == answer.hosts.end()) {
      answer.hosts.push_back(std::move(host));
    } else {
      *known = std::move(host);
    }
  }
}

}  // namespace

HostsAnswer ask_hosts(const std::string& socket, std::chrono::milliseconds longest) {
  HostsAnswer answer;
  const auto connection = connect_to(socket);
  if (!connection) return answer;
  const auto until = Clock::now() + longest;
  std::string received;
  std::size_t at = 0;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd ready{.fd = connection.get(), .events = POLLIN, .revents = 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) == 0) break;
    std::array<char, 65536> buffer;
    const auto got = ::recv(connection.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) break;
    received.append(buffer.data(), static_cast<std::size_t>(got));
    constexpr std::size_t header = 2 * sizeof(std::uint32_t);
    while (received.size() - at >= header) {
      const auto part = value_at<AnswerPart>(received, at);
      const auto size = value_at<std::uint32_t>(received, at + sizeof part);
      if (received.size() - at - header < size) break;
      add_part(answer, part, std::string_view(received).substr(at + header, size));
      at += header + size;
    }
  }
  answer.is_complete =
      answer.is_complete &&
      std::ranges::all_of(answer.hosts, [](const auto& host) { return host.has_answered; });
  return answer;
}

}  // namespace lockstep::control
