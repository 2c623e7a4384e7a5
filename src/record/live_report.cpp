#include "record/live_report.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "core/text.h"
#include "lockstep/error.h"
#include "record/page.h"
#include "record/report.h"

// Libraries for HTTP link TLS and compression into the program, which a page for one browser on the
// same machine needs none of.

namespace lockstep::inline v0_2::record {
namespace {

using detail::concat;

constexpr int live_refresh_seconds = 3;
constexpr std::size_t longest_request = 16384;
constexpr std::chrono::seconds client_time(2);

struct Connection {
  explicit Connection(int descriptor) : fd(descriptor) {}
  ~Connection() {
    if (fd >= 0) ::close(fd);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  int fd;
};

/// Waits until the client sends, or is sent to. False at the deadline.
bool wait_for(int fd, short event, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto rest =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (rest.count() <= 0) return false;
    pollfd waited{.fd = fd, .events = event, .revents = 0};
    const int ready =
        ::poll(&waited, 1, static_cast<int>(std::min<std::int64_t>(rest.count(), 3'600'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

/// The head of a request; empty where none came.
std::string read_request(int fd, std::chrono::steady_clock::time_point deadline) {
  std::string text;
  std::array<char, 2048> buffer;
  while (text.find("\r\n\r\n") == text.npos) {
    if (text.size() > longest_request || !wait_for(fd, POLLIN, deadline)) return "";
    const auto count = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return "";
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text.substr(0, text.find("\r\n\r\n") + 2);
}

void write_response(int fd, std::string_view text, std::chrono::steady_clock::time_point deadline) {
  while (!text.empty() && wait_for(fd, POLLOUT, deadline)) {
    const auto count = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

/// The value of a header, without its port. Names of headers have no case.
std::string host_of(std::string_view request) {
  std::string lower(request);
  std::ranges::transform(lower, lower.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  const std::string_view name = "\r\nhost:";
  const auto begin = lower.find(name);
  if (begin == lower.npos) return "";
  auto value = lower.substr(begin + name.size());
  value = value.substr(0, value.find("\r\n"));
  value.erase(0, std::min(value.find_first_not_of(" \t"), value.size()));
  return value.substr(0, value.find_first_of(": \t"));
}

std::string http(const char* status, const std::string& body, bool with_body) {
  return concat("HTTP/1.1 ", status,
                "\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: ", body.size(),
                "\r\nCache-Control: no-store\r\nConnection: close\r\nX-Content-Type-Options: "
                "nosniff\r\nContent-Security-Policy: default-src 'none'; style-src "
                "'unsafe-inline'\r\n\r\n",
                with_body ? body : "");
}

}  // namespace

LiveReport::LiveReport(std::filesystem::path folder, std::uint16_t port)
    : folder_(std::move(folder)) {
  if (!std::filesystem::is_directory(folder_)) {
    throw InvalidArgument(concat("report: ", folder_.string(), ": no such folder"));
  }
  const auto fail = [&](const char* what) {
    const int error = errno;
    if (listener_ >= 0) ::close(listener_);
    throw Error(concat("report: --serve: cannot ", what, " port ", port, " of 127.0.0.1: ",
                       std::strerror(error), ". Choose another one with --port."));
  };
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0) fail("make a socket for");
  const int on = 1;
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, generic, size) != 0) fail("use");
  if (::listen(listener_, 16) != 0) fail("listen on");
  if (::getsockname(listener_, generic, &size) != 0) fail("find");
  port_ = ntohs(address.sin_port);
}

LiveReport::~LiveReport() { ::close(listener_); }

std::string LiveReport::address() const { return concat("http://127.0.0.1:", port_, "/"); }

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

std::string LiveReport::response(const std::string& request) const {
  const auto method = request.substr(0, request.find(' '));
  const auto target = request.substr(std::min(method.size() + 1, request.size()));
  const auto path = target.substr(0, target.find_first_of(" ?"));
  const auto refuse = [](const char* status) {
    return http(status, filled(page_template, {{"title", status}}), true);
  };
  // Another site's name that leads to this address is that site's attempt to read the page.
  const auto host = host_of(request);
  if (host != "127.0.0.1" && host != "localhost") return refuse("403 Forbidden");
  if (method != "GET" && method != "HEAD") return refuse("405 Method Not Allowed");
  if (path != "/") return refuse("404 Not Found");
  return http("200 OK", page(), method == "GET");
}

bool LiveReport::answer(std::chrono::milliseconds timeout) {
  if (!wait_for(listener_, POLLIN, std::chrono::steady_clock::now() + timeout)) return false;
  const Connection client(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
  if (client.fd < 0) return true;
  const auto request = read_request(client.fd, std::chrono::steady_clock::now() + client_time);
  if (request.empty()) return true;
  const auto text = response(request);
  write_response(client.fd, text, std::chrono::steady_clock::now() + client_time);
  return true;
}

}  // namespace lockstep::record
