#include "comm/control/joining.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "comm/control/address.h"
#include "core/deadline.h"
#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::control {
namespace {

using detail::concat;
using detail::Deadline;
using detail::Descriptor;

/// An address that has not answered for so long may be another host's.
constexpr auto patience = std::chrono::seconds(5);
/// Rank 0 knows the missing ranks, so the ranks that wait for it time out later by this much.
constexpr auto precedence = std::chrono::seconds(2);
constexpr auto between_looks = std::chrono::milliseconds(20);

/// An address of rank 0, and what became of it.
struct Way {
  Address to;
  std::optional<Address> from = {};  ///< the named interface's own
  std::string problem = "not tried yet";
  bool closed = false;  ///< another program answers there
};

class Joining {
 public:
  Joining(const Offer& offer, const Settings& settings)
      : offer_(offer), settings_(settings), until_(settings.timeout + precedence) {}

  Member run() {
    find_ways();
    for (;;) {
      for (auto& way : ways_) {
        if (way.closed) continue;
        if (auto member = try_way(way)) return await_all(std::move(*member));
        look();
      }
      if (std::ranges::all_of(ways_, &Way::closed))
        throw CommError(unreachable("cannot reach"), {.rank = 0});
      std::this_thread::sleep_for(between_looks);
    }
  }

 private:
  std::string who() const {
    return concat("control: rank ", settings_.rank, " of ", settings_.size, " on host ",
                  settings_.host, ' ');
  }

  std::string unreachable(const std::string& how) const {
    std::string text = concat(who(), how, " rank 0");
    for (const auto& way : ways_) {
      text += concat(&way == &ways_.front() ? " at " : "; at ", way.to.text(),
                     way.from ? concat(" from ", way.from->host()) : "", ": ", way.problem);
    }
    return text;
  }

  void look() {
    settings_.look();
    if (until_.passed()) {
      throw TimeoutError(
          unreachable(concat("tried for ", settings_.timeout.count() / 1000.0, " s to reach")),
          {.rank = 0});
    }
  }

  void find_ways() {
    const bool together = offer_.network == settings_.network;
    std::vector<Address> own;
    if (!settings_.interface.empty()) {
      own = usable_interfaces(settings_.interface).front().addresses;
    }
    for (const auto& to : std::span(offer_.addresses).first(offer_.count)) {
      if (to.loopback() && !together) continue;  // this host's own
      const auto from = std::ranges::find(own, to.family(), &Address::family);
      if (to.loopback() || own.empty()) {
        ways_.push_back({.to = to});
      } else if (from != own.end()) {
        ways_.push_back({.to = to, .from = *from});
      }
    }
    if (ways_.empty()) {
      throw CommError(concat(who(), "has no way to rank 0, which listens on ",
                             offer_.count == 0 ? "nothing" : offer_.addresses[0].host(),
                             own.empty() ? " only: its host has no interface that leads to others"
                                         : concat(", from the addresses of LOCKSTEP_INTERFACE=",
                                                  settings_.interface)));
    }
  }

  /// Connects and sends the Hello; empty when rank 0 does not answer there.
  std::optional<Member> try_way(Way& way) {
    Descriptor socket(::socket(way.to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const auto failed = [&](int code) {
      way.problem = std::strerror(code);
      return std::nullopt;
    };
    if (!socket) return failed(errno);
    if (way.from) {
      const auto from = way.from->with_port(0);
      if (::bind(socket.get(), from.get(), from.length()) != 0) return failed(errno);
    }
    Deadline until(patience);
    if (::connect(socket.get(), way.to.get(), way.to.length()) != 0) {
      if (errno != EINPROGRESS) return failed(errno);
      if (!await(socket.get(), POLLOUT, until)) return failed(ETIMEDOUT);
      int code = 0;
      socklen_t length = sizeof code;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &length);
      if (code != 0) return failed(code);
    }
    Connection connection(std::move(socket));
    Hello hello{.token = offer_.token, .rank = settings_.rank, .size = settings_.size};
    set_text(hello.version, settings_.version);
    set_text(hello.host, settings_.host);
    connection.send({.kind = Kind::hello, .payload = bytes_of(hello)});
    return answer(way, std::move(connection), until);
  }

  std::optional<Member> answer(Way& way, Connection connection, Deadline& until) {
    while (await(connection.fd(), POLLIN, until)) {
      const bool open = connection.receive();
      std::optional<Frame> frame;
      try {
        frame = connection.next();
      } catch (const CommError& error) {
        way.problem = concat("who answers there says ", error.what());
        way.closed = true;
        return std::nullopt;
      }
      if (frame) return judge(way, std::move(connection), *frame);
      if (!open) {
        way.problem = "who listens there closed the connection";
        return std::nullopt;
      }
    }
    way.problem = "who listens there does not answer";
    return std::nullopt;
  }

  std::optional<Member> judge(Way& way, Connection connection, const Frame& frame) {
    raise_failure(frame);
    Greeting greeting;
    if (frame.kind == Kind::accepted && frame.payload.size() == sizeof greeting) {
      std::memcpy(&greeting, frame.payload.data(), sizeof greeting);
    }
    if (greeting.token == offer_.token) {
      const auto local = Address::local(connection.fd());
      log::debug(concat(who(), "reached rank 0 at ", way.to.text(), " by interface ",
                        interface_of(local), ", ", local.host()));
      return Member{.connection = std::move(connection),
                    .rank = 0,
                    .host = text_of(greeting.host),
                    .heartbeat = std::chrono::milliseconds(greeting.heartbeat)};
    }
    way.problem = frame.kind == Kind::refused ? frame.payload : "another program answers there";
    way.closed = true;
    return std::nullopt;
  }

  /// Until all are here.
  Member await_all(Member member) {
    const auto still = concat(who(), "waited for all ranks to come: ");
    try {
      for (bool open = true;; open = member.connection.receive()) {
        while (const auto frame = member.connection.next()) {
          raise_failure(*frame);
          if (frame->kind == Kind::all_here) return member;
        }
        if (!open)
          throw CommError(concat(still, "rank 0 on host ", member.host, " has ended"), {.rank = 0});
        if (!await(member.connection.fd(), POLLIN, until_)) {
          throw TimeoutError(concat(still, "rank 0 on host ", member.host, " was silent for ",
                                    settings_.timeout.count() / 1000.0, " s"),
                             {.rank = 0});
        }
      }
    } catch (const CommError& error) {
      member.connection.send(told(failure_of(error)));
      throw;
    }
  }

  static void raise_failure(const Frame& frame) {
    if (const auto failure = failure_in(frame)) raise(*failure);
  }

  /// Whether the socket is ready before that time.
  bool await(int fd, short events, Deadline& until) const {
    while (!until.passed()) {
      settings_.look();
      pollfd socket{.fd = fd, .events = events, .revents = 0};
      if (::poll(&socket, 1, static_cast<int>(between_looks.count())) > 0) return true;
    }
    return false;
  }

  const Offer& offer_;
  const Settings& settings_;
  Deadline until_;
  std::vector<Way> ways_;
};

}  // namespace

Member join(const Offer& offer, const Settings& settings) { return Joining(offer, settings).run(); }

}  // namespace lockstep::control
