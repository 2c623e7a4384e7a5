#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "comm/control/handshake.h"
#include "comm/control/joining.h"
#include "core/log.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::control {
namespace {

using detail::concat;
using detail::Descriptor;

/// Connections without a Hello that are kept in addition to one for each rank.
constexpr std::size_t spare = 64;
/// Connections that are accepted at an address before others are read again.
constexpr int accepted_at_once = 64;
/// Closed connections that are reported as warnings; a flood has many more.
constexpr int most_warnings = 10;

}  // namespace

Gathering::Gathering(Settings settings) : settings_(std::move(settings)) {
  offer_.token = settings_.token ? *settings_.token : random_bytes();
  offer_.network = settings_.network;
  offer_.rank = settings_.rank;
  offer_.listening = true;
  if (settings_.listening >= 0) {
    listening_.emplace_back(settings_.listening);
    return;
  }
  if (settings_.port != 0 && settings_.interface.empty()) {
    if (listen_on(Address::any(AF_INET6)) || listen_on(Address::any(AF_INET))) return;
    throw CommError(
        of_own(settings_, "cannot listen on port ", settings_.port, ": ", std::strerror(errno)));
  }
  // Ranks on this host connect over loopback.
  for (const auto& interface : interfaces()) {
    if (interface.loopback) listen_on(interface);
  }
  const auto on_loopback = offer_.count;
  for (const auto& interface : usable_interfaces(settings_.interface)) {
    if (!interface.loopback) listen_on(interface);
  }
  // Some addresses may be unusable, as long as one between hosts can be listened on.
  if (offer_.count == 0 || (offer_.count == on_loopback && !listen_error_.empty())) {
    throw CommError(of_own(settings_, "has no address to listen on",
                           listen_error_.empty() ? "" : ": ", listen_error_));
  }
}

void Gathering::listen_on(const Interface& interface) {
  for (const auto& address : interface.addresses) {
    if (offer_.count == offer_.addresses.size() || listen_on(address)) continue;
    listen_error_ = concat(interface.name, ' ', address.host(), ": ", std::strerror(errno));
    log::warn(of_own(settings_, "cannot listen on ", listen_error_));
  }
}

bool Gathering::listen_on(const Address& address) {
  // A port of the user may have connections of an earlier world.
  auto made = listen_at(address.with_port(settings_.port), settings_.port != 0);
  if (!made) return false;
  offer_.addresses[offer_.count++] = Address::local(made.get());
  listening_.push_back(std::move(made));
  return true;
}

std::vector<Member> Gathering::wait() {
  detail::Deadline until(settings_.timeout);
  detail::ReportTimes reports(settings_.stall_warning);
  while (!all_here()) {
    check_world();
    if (const auto time = reports.due(until.elapsed())) {
      log::notice(of_own(settings_, "has waited ", time->count() / 1000.0, " s for ",
                         missing_text(), last_refusal_));
    }
    if (until.passed()) {
      end({.kind = Failure::Kind::timeout,
           .rank = missing().front(),
           .text = of_own(settings_, "waited ", settings_.timeout.count() / 1000.0, " s for ",
                          missing_text(), last_refusal_)});
    }
    process_connections(until);
  }
  listening_.clear();
  for (auto& pending : pending_) refuse(pending, concat("all ", settings_.noun, "s have joined"));
  pending_.clear();
  std::ranges::sort(members_, {}, &Member::rank);
  if (settings_.offer) {
    offers_.push_back(*settings_.offer);
    for (const auto& member : members_) offers_.push_back(member.offer);
  }
  for (const auto& offer : offers_) {
    send_to_all({.kind = Kind::offer, .payload = bytes_of(offer)});
  }
  send_to_all({.kind = Kind::all_here});
  return std::move(members_);
}

bool Gathering::all_here() {
  const auto joined = static_cast<int>(members_.size()) + 1;
  if (joined < settings_.size - settings_.rank && !settings_.enough(joined)) return false;
  return std::erase_if(members_, [this](Member& member) { return !watch(member); }) == 0;
}

void Gathering::check_world() {
  try {
    settings_.on_wait();
  } catch (const CommError& error) {
    send_to_all(failure_frame(detail::failure_of(error)));
    throw;
  }
}

void Gathering::process_connections(detail::Deadline& until) {
  std::vector<pollfd> waiting;
  const auto watch_fd = [&](int fd) {
    waiting.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  };
  for (const auto& socket : listening_) watch_fd(socket.get());
  for (const auto& pending : pending_) watch_fd(pending.connection.fd());
  for (const auto& member : members_) watch_fd(member.connection.fd());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until.left());
  const auto nap = std::min<std::chrono::milliseconds>(left, poll_interval);
  if (::poll(waiting.data(), waiting.size(), static_cast<int>(nap.count())) < 0) return;

  // First, so that a process may replace one of the same rank that has ended.
  std::erase_if(members_, [this](Member& member) { return !watch(member); });
  std::erase_if(pending_, [this](PendingConnection& pending) {
    const bool late = Clock::now() - pending.since > hello_timeout;
    if (!read_hello(pending)) return true;
    if (late) report(pending, "it sent no hello");
    return late;
  });
  for (const auto& socket : listening_) accept_connections(socket.get());
}

void Gathering::accept_connections(int listening) {
  for (int i = 0; i < accepted_at_once; ++i) {
    Descriptor socket(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      PendingConnection accepted{.connection = Connection(std::move(socket))};
      accepted.connection.send({.kind = Kind::challenge, .payload = bytes_of(accepted.nonce)});
      if (read_hello(accepted)) pending_.push_back(std::move(accepted));
      const auto most = static_cast<std::size_t>(settings_.size) + spare;
      if (pending_.size() <= most) continue;
    } else if (errno != EMFILE && errno != ENFILE) {
      return;  // no connection is waiting, or it has closed
    } else if (pending_.empty()) {
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      end({.text = of_own(settings_, "cannot open more files for the connections of ",
                          missing_text(), ": raise ulimit -n, now ", limit.rlim_cur,
                          ", by the number of ", settings_.noun, 's')});
    }
    evict();
  }
}

void Gathering::evict() {
  auto evicted = std::move(pending_.front());
  pending_.pop_front();
  if (read_hello(evicted)) report(evicted, "too many connections without a hello");
}

bool Gathering::read_hello(PendingConnection& pending) {
  const bool open = pending.connection.receive();
  std::optional<Frame> frame;
  try {
    frame = pending.connection.next();
  } catch (const CommError& error) {
    refuse(pending, error.what());
    return false;
  }
  if (!frame) {
    if (!open) report(pending, "it closed the connection without a hello");
    return open;
  }
  if (frame->kind != Kind::hello || frame->payload.size() != sizeof(Hello) + FrameMac::bytes) {
    refuse(pending, "its first frame is not a hello of this Lockstep version");
  } else if (!open || !pending.connection.receive()) {
    report(pending, "it closed the connection before it was accepted");
  } else {
    admit(pending, *frame);
  }
  return false;
}

void Gathering::admit(PendingConnection& pending, Frame& frame) {
  Hello hello;
  std::memcpy(&hello, frame.payload.data(), sizeof hello);
  auto macs = macs_of(offer_.token, {.purpose = settings_.purpose,
                                     .gatherer = settings_.rank,
                                     .joiner = hello.rank,
                                     .of_gatherer = pending.nonce,
                                     .of_joiner = hello.nonce});
  try {
    macs.to_gatherer.remove(static_cast<std::uint16_t>(frame.kind), frame.payload);
  } catch (const CommError&) {
    return refuse(pending,
                  "it belongs to another world: its token differs; expected the same "
                  "LOCKSTEP_TOKEN_FILE on all hosts, or none");
  }
  pending.connection.authenticate(macs.to_joiner, macs.to_gatherer);
  const std::string host = text_of(hello.host), version = text_of(hello.version);
  const auto who =
      concat(settings_.purpose, ": ", settings_.noun, ' ', hello.rank, " on host ", host);
  auto same = std::ranges::find(members_, hello.rank, &Member::rank);
  if (same != members_.end() && same->process == hello.process && same->attempt > hello.attempt)
    return report(pending, "its process has connected again since");
  const auto ended = [this](Member& member) {
    return !watch(member) || Clock::now() - member.last_frame > settings_.heartbeat;
  };
  if (same != members_.end() && (same->process == hello.process || ended(*same))) {
    members_.erase(same);
    same = members_.end();
  }
  Member member{.connection = std::move(pending.connection),
                .rank = hello.rank,
                .host = host,
                .heartbeat = settings_.heartbeat,
                .process = hello.process,
                .attempt = hello.attempt,
                .offer = hello.offer};
  const auto own = concat(", ", settings_.noun, ' ', settings_.rank, " on host ", settings_.host);
  std::string wrong;
  if (version != settings_.version) {
    wrong = concat(who, " runs Lockstep ", version, own, " runs ", settings_.version);
  } else if (hello.size != settings_.size) {
    wrong = concat(who, " expects a world of ", detail::plural(hello.size, settings_.noun), own,
                   " one of ", settings_.size);
  } else if (hello.rank <= settings_.rank || hello.rank >= settings_.size) {
    wrong = concat(who, " joined, expected ", settings_.noun, "s ", settings_.rank + 1, " to ",
                   settings_.size - 1);
  } else if (same != members_.end()) {
    wrong =
        concat(settings_.purpose, ": two processes say that they are ", settings_.noun, ' ',
               hello.rank, " of ", settings_.size, ": on host ", same->host, " and on host ", host);
  }
  if (!wrong.empty()) {
    members_.push_back(std::move(member));  // so that it also receives the failure
    end({.rank = hello.rank, .text = wrong});
  }
  Greeting greeting{.heartbeat = settings_.heartbeat.count()};
  set_text(greeting.host, settings_.host);
  member.connection.send({.kind = Kind::accepted, .payload = bytes_of(greeting)});
  log::debug(concat(who, " joined from ", member.connection.peer().text()));
  lost_.erase(member.rank);
  members_.push_back(std::move(member));
}

bool Gathering::watch(Member& member) {
  bool open = member.connection.receive();
  std::string why = "ended";
  const auto next = [&]() -> std::optional<Frame> {
    try {
      return member.connection.next();
    } catch (const CommError& error) {
      open = false;
      why = concat("broke: ", error.what());
      return std::nullopt;
    }
  };
  while (const auto frame = next()) {
    member.last_frame = Clock::now();
    if (const auto failure = failure_in(*frame)) end(*failure);
  }
  if (open) return true;
  lost_[member.rank] = concat(" (its connection from host ", member.host, ' ', why, ")");
  log::warn(
      of_own(settings_, "waits again for ", settings_.noun, ' ', member.rank, lost_[member.rank]));
  return false;
}

void Gathering::report(const PendingConnection& pending, const std::string& why) {
  const auto text = concat("refused ", pending.connection.peer().text(), ": ", why);
  last_refusal_ = concat("; ", text);
  if (++reports_ <= most_warnings) {
    log::warn(
        of_own(settings_, text, reports_ < most_warnings ? "" : "; later ones are not reported"));
  }
}

void Gathering::refuse(PendingConnection& pending, const std::string& why) {
  report(pending, why);
  pending.connection.send({.kind = Kind::refused, .payload = of_own(settings_, "refuses: ", why)});
}

void Gathering::end(const Failure& failure) {
  listening_.clear();
  send_to_all(failure_frame(failure));
  raise(failure);
}

void Gathering::send_to_all(const Frame& frame) {
  for (auto& member : members_) member.connection.send(frame);
}

std::vector<int> Gathering::missing() const {
  std::vector<int> ranks;
  for (int rank = settings_.rank + 1; rank < settings_.size; ++rank) {
    if (std::ranges::find(members_, rank, &Member::rank) == members_.end()) ranks.push_back(rank);
  }
  return ranks;
}

std::string Gathering::missing_text() const {
  const auto note = [this](int rank) -> std::string_view {
    const auto found = lost_.find(rank);
    return found == lost_.end() ? std::string_view() : found->second;
  };
  return detail::rank_list(missing(), note, settings_.noun);
}

}  // namespace lockstep::control
