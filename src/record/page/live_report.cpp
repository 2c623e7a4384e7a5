#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "record/page/page.h"
#include "record/page/report.h"

// Libraries for HTTP link TLS and compression into the program, which a page for one browser on the
// same machine needs none of.

namespace lockstep::inline v0_2::record {
namespace {

using detail::concat;

constexpr int live_refresh_seconds = 3;
constexpr std::size_t longest_request = 16384;
/// Clients that are served at the same time. A further one replaces the oldest.
constexpr std::size_t most_clients = 64;
/// Longest time until a client has sent its request, and until it has read the response.
constexpr std::chrono::seconds client_time(5);

/// A random text that nobody guesses.
std::string new_token() {
  std::array<std::uint64_t, 2> words{};
  if (::getrandom(words.data(), sizeof words, 0) != static_cast<ssize_t>(sizeof words)) {
    throw Error(concat("report: --serve: cannot make a random token: ", std::strerror(errno)));
  }
  return detail::hex(words[0], 16) + detail::hex(words[1], 16);
}

/// Takes the same time wherever the texts differ, so that the time gives no part of a token away.
bool equal_in_constant_time(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned different = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    different |= static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(other[i]);
  }
  return different == 0;
}

std::string http(const char* status, const std::string& body) {
  return concat("HTTP/1.1 ", status,
                "\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: ", body.size(),
                "\r\nCache-Control: no-store\r\nConnection: close\r\nX-Content-Type-Options: "
                "nosniff\r\nReferrer-Policy: no-referrer\r\nContent-Security-Policy: default-src "
                "'none'; style-src 'unsafe-inline'\r\n\r\n",
                body);
}

}  // namespace

LiveReport::LiveReport(std::filesystem::path folder, std::uint16_t port)
    : folder_(std::move(folder)), token_(new_token()) {
  if (!std::filesystem::is_directory(folder_)) {
    throw InvalidArgument(concat("report: ", folder_.string(), ": no such folder"));
  }
  const auto fail = [&](const char* what) {
    const int error = errno;
    throw Error(concat("report: --serve: cannot ", what, " port ", port, " of 127.0.0.1: ",
                       std::strerror(error), ". Choose another one with --port."));
  };
  listener_ = detail::Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) fail("make a socket for");
  const int on = 1;
  ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_.get(), generic, size) != 0) fail("use");
  if (::listen(listener_.get(), 16) != 0) fail("listen on");
  if (::getsockname(listener_.get(), generic, &size) != 0) fail("find");
  port_ = ntohs(address.sin_port);
}

std::string LiveReport::address() const {
  return concat("http://127.0.0.1:", port_, "/?token=", token_);
}

std::string LiveReport::page() const {
  try {
    const Run run = read_run(folder_);
    return report_page(run, concat("Run ", run.name), live_refresh_seconds);
  } catch (const std::exception& error) {
    return filled(page_template, {{"title", "The run has recorded nothing yet"},
                                  {"refresh", std::to_string(live_refresh_seconds)},
                                  {"intro", error.what()}});
  }
}

std::string LiveReport::response(std::string_view request) const {
  const auto wanted = concat("GET /?token=", token_, ' ');
  const auto begin = request.substr(0, wanted.size());
  if (equal_in_constant_time(begin, wanted)) return http("200 OK", page());
  return http(
      "403 Forbidden",
      filled(page_template, {{"title", "403 Forbidden"},
                             {"intro",
                              "The address has no token, or that of another server. Open the whole "
                              "address that `lockstep report --serve` has printed."}}));
}

bool LiveReport::advance(Client& client) const {
  if (client.unsent.empty()) {
    std::array<char, 2048> buffer;
    const auto count = ::recv(client.socket.get(), buffer.data(), buffer.size(), 0);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (count <= 0 || client.request.size() > longest_request) return false;
    client.request.append(buffer.data(), static_cast<std::size_t>(count));
    if (client.request.find("\r\n\r\n") == client.request.npos) return true;
    client.unsent = response(client.request);
    client.until = Clock::now() + client_time;
  }
  const auto count =
      ::send(client.socket.get(), client.unsent.data(), client.unsent.size(), MSG_NOSIGNAL);
  if (count < 0) return errno == EINTR || errno == EAGAIN;
  client.unsent.erase(0, static_cast<std::size_t>(count));
  return !client.unsent.empty();
}

void LiveReport::accept_client() {
  detail::Descriptor socket(
      ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  if (clients_.size() == most_clients) clients_.pop_front();
  clients_.push_back({.socket = std::move(socket), .until = Clock::now() + client_time});
}

bool LiveReport::answer(std::chrono::milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  for (;;) {
    auto next = until;
    std::vector<pollfd> waiting{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const auto& client : clients_) {
      const short event = client.unsent.empty() ? POLLIN : POLLOUT;
      waiting.push_back({.fd = client.socket.get(), .events = event, .revents = 0});
      next = std::min(next, client.until);
    }
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    ::poll(waiting.data(), waiting.size(),
           static_cast<int>(std::clamp<std::int64_t>(rest, 0, 3'600'000)));
    auto ready = waiting.begin();
    const bool is_asked = ready->revents != 0;
    const auto ended = clients_.remove_if([&](Client& client) {
      const bool is_ready = (++ready)->revents != 0;
      return Clock::now() >= client.until || (is_ready && !advance(client));
    });
    if (is_asked) accept_client();
    if (ended > 0) return true;
    if (Clock::now() >= until) return false;
  }
}

}  // namespace lockstep::record
