#include "comm/control/joining.h"

#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
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

/// Time after which the next address is tried: the address may be that of another host.
constexpr auto connect_timeout = std::chrono::seconds(5);
/// How long all addresses refuse before a rank gives up. If rank 0 has failed, its failure arrives
/// meanwhile by Settings::on_wait.
constexpr auto refused_timeout = std::chrono::seconds(1);
/// Longest pause between two attempts.
constexpr auto longest_pause = std::chrono::milliseconds(320);
/// How often a rank that waits for rank 0 sends a frame. If rank 0's side of the connection is
/// gone, the answer is a reset.
constexpr auto keepalive = std::chrono::seconds(1);
/// Added to the timeout of ranks that wait for rank 0. Rank 0 times out first, because it can name
/// the missing ranks.
constexpr auto precedence = std::chrono::seconds(2);

/// An address of the rank that gathers, and the result of connecting to it.
struct Route {
  Address to;
  std::optional<Address> from = {};  ///< address of the user's interface
  std::string result = "not tried yet";
  bool refused = false;  ///< it refused this rank, or another program answered
};

class Joining {
 public:
  Joining(const OfferSource& source, const Settings& settings, std::vector<Offer>* offers)
      : source_(source),
        settings_(settings),
        offers_(offers),
        limit_(std::min(settings.timeout, Deadline::longest) + precedence),
        until_(limit_),
        reports_(settings.stall_warning) {
    fill_random(&process_, sizeof process_);
  }
  ~Joining() { erase(offer_.token); }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

  Member run() {
    std::optional<Deadline> refused;
    for (;;) {
      read_offer();
      for (auto& route : routes_) {
        auto member = try_route(route);
        if (member && await_all(route, *member)) return std::move(*member);
        check_world();
      }
      if (!offer_.listening || routes_.empty() || !std::ranges::all_of(routes_, &Route::refused)) {
        refused.reset();
      } else if (!refused) {
        refused.emplace(refused_timeout);
      } else if (refused->passed()) {
        throw CommError(unreachable("cannot reach"), {.rank = offer_.rank});
      }
      pause();
    }
  }

 private:
  std::string unreachable(const std::string& how) const {
    auto text = of_own(settings_, how, ' ', gatherer(), routes_.empty() ? missing_ : "");
    for (const auto& route : routes_) {
      text += concat(&route == &routes_.front() ? " at " : "; at ", route.to.text(),
                     route.from ? concat(" from ", route.from->host()) : "", ": ", route.result);
    }
    return text;
  }

  std::string gatherer() const { return concat(settings_.noun, ' ', offer_.rank); }

  /// Reads the present offer. The time of a call that blocks counts whole. The routes of an offer
  /// that is the same stay as they are.
  void read_offer() {
    const auto left = until_.left();
    const auto begin = Deadline::Clock::now();
    std::optional<Offer> offer;
    try {
      offer = source_();
    } catch (const CommError& error) {
      routes_.clear();
      missing_ = concat(": ", error.what());
    }
    if (offer && (routes_.empty() || *offer != offer_)) {
      routes_.clear();
      offer_ = *offer;
      find_routes();
    }
    until_ = Deadline(left - (Deadline::Clock::now() - begin));
  }

  void poll_world() {
    settings_.on_wait();
    const auto time = reports_.due(limit_ - until_.left());
    if (!time || is_accepted_) return;  // rank 0 names the ranks that this one waits for
    log::notice(unreachable(concat("has tried for ", time->count() / 1000.0, " s to reach")));
  }

  void check_world() {
    poll_world();
    if (until_.passed()) {
      throw TimeoutError(
          unreachable(concat("tried for ", settings_.timeout.count() / 1000.0, " s to reach")),
          {.rank = offer_.rank});
    }
  }

  /// Longer each time.
  void pause() {
    Deadline until(pause_);
    pause_ = std::min<std::chrono::milliseconds>(2 * pause_, longest_pause);
    while (!until.passed()) {
      std::this_thread::sleep_for(poll_interval);
      check_world();
    }
  }

  void find_routes() {
    const bool same_host = offer_.network == settings_.network;
    std::vector<Address> own;
    if (!settings_.interface.empty()) {
      own = usable_interfaces(settings_.interface).front().addresses;
    }
    for (const auto& to : std::span(offer_.addresses).first(offer_.count)) {
      if (to.loopback() && offer_.network != unknown_network && !same_host)
        continue;  // a loopback address of another host
      const auto from = std::ranges::find(own, to.family(), &Address::family);
      if (to.loopback() || own.empty()) {
        routes_.push_back({.to = to});
      } else if (from != own.end()) {
        routes_.push_back({.to = to, .from = *from});
      }
    }
    if (routes_.empty()) {
      throw CommError(of_own(settings_, "cannot connect to ", gatherer(), ", which listens on ",
                             offer_.count == 0 ? "nothing" : offer_.addresses[0].host(),
                             own.empty() ? " only: its host has no network interface to other hosts"
                                         : concat(", from the addresses of LOCKSTEP_INTERFACE=",
                                                  settings_.interface)));
    }
  }

  /// Connects, identifies this rank and waits for the answer; nullopt if that rank did not admit
  /// this rank there.
  std::optional<Member> try_route(Route& route) {
    route.refused = false;
    Descriptor socket(::socket(route.to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const auto failed = [&](int code) {
      route.result = std::strerror(code);
      route.refused = code == ECONNREFUSED;
      return std::nullopt;
    };
    if (!socket) return failed(errno);
    if (route.from) {
      const auto from = route.from->with_port(0);
      if (::bind(socket.get(), from.get(), from.length()) != 0) return failed(errno);
    }
    if (::connect(socket.get(), route.to.get(), route.to.length()) != 0) {
      if (errno != EINPROGRESS) return failed(errno);
      Deadline limit(connect_timeout);
      if (!await(socket.get(), POLLOUT, limit)) return failed(ETIMEDOUT);
      int code = 0;
      socklen_t length = sizeof code;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &length);
      if (code != 0) return failed(code);
    }
    return await_answer(route, Connection(std::move(socket)));
  }

  void send_hello(Connection& connection, const Frame& challenge) {
    Parties parties{.purpose = settings_.purpose,
                    .gatherer = offer_.rank,
                    .joiner = settings_.rank,
                    .of_joiner = random_bytes()};
    challenge.payload.copy(parties.of_gatherer.data(), parties.of_gatherer.size());
    Hello hello{.nonce = parties.of_joiner,
                .process = process_,
                .attempt = ++attempts_,
                .rank = settings_.rank,
                .size = settings_.size};
    set_text(hello.version, settings_.version);
    set_text(hello.host, settings_.host);
    if (settings_.offer) hello.offer = *settings_.offer;
    const auto macs = macs_of(offer_.token, parties);
    connection.authenticate(macs.to_gatherer, macs.to_joiner);
    connection.send({.kind = Kind::hello, .payload = bytes_of(hello)});
  }

  /// That rank may be stopped, or short of memory, for any time: after its challenge, only the
  /// timeout limits this wait. Another program may never send one.
  std::optional<Member> await_answer(Route& route, Connection connection) {
    Deadline until_challenge(hello_timeout);
    route.result = "it has not answered yet";
    bool challenged = false;
    while (challenged ? await_bytes(connection) : await(connection.fd(), POLLIN, until_challenge)) {
      const bool open = connection.receive();
      std::optional<Frame> frame;
      try {
        frame = connection.next();
        if (frame && frame->kind == Kind::challenge && !std::exchange(challenged, true)) {
          send_hello(connection, *frame);
          frame = connection.next();
        }
      } catch (const CommError& error) {
        route.result = concat("another program answered: ", error.what());
        route.refused = true;
        return std::nullopt;
      }
      if (frame) return handle_answer(route, std::move(connection), *frame);
      if (!open) {
        route.result = "the listening program closed the connection";
        return std::nullopt;
      }
    }
    route.result = "the listening program did not answer";
    return std::nullopt;
  }

  std::optional<Member> handle_answer(Route& route, Connection connection, const Frame& frame) {
    if (connection.authenticated()) raise_failure(frame);
    Greeting greeting;
    if (connection.authenticated() && frame.kind == Kind::accepted &&
        frame.payload.size() == sizeof greeting) {
      std::memcpy(&greeting, frame.payload.data(), sizeof greeting);
      log::debug(of_own(settings_, "reached ", gatherer(), " at ", route.to.text(), " from ",
                        Address::local(connection.fd()).host()));
      return Member{.connection = std::move(connection),
                    .rank = offer_.rank,
                    .host = text_of(greeting.host),
                    .heartbeat = std::chrono::milliseconds(greeting.heartbeat)};
    }
    route.result = frame.kind == Kind::refused ? frame.payload : "another program answered";
    route.refused = true;
    return std::nullopt;
  }

  /// Waits until all ranks have joined. False if the connection ended before.
  bool await_all(Route& route, Member& member) {
    const auto prefix = of_own(settings_, "waited for all ", settings_.noun, "s to join: ");
    if (offers_ != nullptr) offers_->clear();
    is_accepted_ = true;
    // Rank 0 may have begun to wait much later than this rank.
    const auto before = std::exchange(until_, Deadline(limit_));
    try {
      for (bool open = true;; open = member.connection.receive()) {
        while (const auto frame = member.connection.next()) {
          raise_failure(*frame);
          if (frame->kind == Kind::offer) add_offer(*frame);
          if (frame->kind == Kind::all_here) return true;
        }
        if (!open) {
          is_accepted_ = false;
          until_ = before;
          pause_ = poll_interval;
          route.result = concat(gatherer(), " on host ", member.host, " closed the connection");
          log::debug(concat(prefix, route.result, "; connects again"));
          return false;
        }
        if (!await_bytes(member.connection)) {
          throw TimeoutError(concat(prefix, gatherer(), " on host ", member.host,
                                    " sent nothing for ", settings_.timeout.count() / 1000.0, " s"),
                             {.rank = offer_.rank});
        }
      }
    } catch (const CommError& error) {
      member.connection.send(failure_frame(detail::failure_of(error)));
      throw;
    }
  }

  void add_offer(const Frame& frame) {
    Offer offer;
    if (offers_ == nullptr || frame.payload.size() != sizeof offer) return;
    std::memcpy(static_cast<void*>(&offer), frame.payload.data(), sizeof offer);
    offers_->push_back(offer);
  }

  static void raise_failure(const Frame& frame) {
    if (const auto failure = failure_in(frame)) raise(*failure);
  }

  /// Whether bytes arrive before the deadline of the rendezvous.
  bool await_bytes(Connection& connection) {
    for (;;) {
      Deadline limit(keepalive);
      if (await(connection.fd(), POLLIN, limit)) return true;
      if (until_.passed()) return false;
      connection.send({.kind = Kind::heartbeat});
    }
  }

  /// Whether the socket becomes ready within the limit, and before the deadline of the rendezvous.
  bool await(int fd, short events, Deadline& limit) {
    // A deadline that is not read during a wait would count most of it as a stop of the process.
    while (!limit.passed() && !until_.passed()) {
      poll_world();
      pollfd socket{.fd = fd, .events = events, .revents = 0};
      if (::poll(&socket, 1, static_cast<int>(poll_interval.count())) > 0) return true;
    }
    return false;
  }

  const OfferSource& source_;
  const Settings& settings_;
  std::vector<Offer>* offers_;
  Offer offer_;          ///< the last one
  std::string missing_;  ///< why there is no offer
  std::chrono::milliseconds limit_;
  Deadline until_;
  detail::ReportTimes reports_;
  bool is_accepted_ = false;  ///< rank 0 has accepted this rank, which waits for the others
  std::uint64_t process_ = 0;
  std::uint64_t attempts_ = 0;
  std::chrono::milliseconds pause_ = poll_interval;
  std::vector<Route> routes_;
};

}  // namespace

Member join(const OfferSource& source, const Settings& settings, std::vector<Offer>* offers) {
  return Joining(source, settings, offers).run();
}

Member join(const Offer& offer, const Settings& settings, std::vector<Offer>* offers) {
  return join([&] { return offer; }, settings, offers);
}

OfferSource offer_at(const std::string& host, std::uint16_t port, const Token& token) {
  return [=] {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* first = nullptr;
    const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &first);
    if (code != 0) throw CommError(concat("the name '", host, "': ", ::gai_strerror(code)));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(first, ::freeaddrinfo);
    Offer offer{.token = token, .network = unknown_network};
    for (const auto* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
      const auto address = Address::of(entry->ai_addr);
      if (!address || offer.count == offer.addresses.size()) continue;
      offer.addresses[offer.count++] = address->with_port(port);
    }
    return offer;
  };
}

}  // namespace lockstep::control
