#include "comm/control/gathering.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "core/log.h"
#include "core/plural.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::control {
namespace {

using detail::concat;
using detail::Descriptor;

/// A connection that sends nothing for longer than this is refused.
constexpr auto patience = std::chrono::seconds(5);
constexpr auto between_looks = std::chrono::milliseconds(20);
/// Strangers that may be in the way at a time, beyond the ranks themselves.
constexpr std::size_t spare = 64;

std::string of_rank_0(const Settings& settings, std::string_view what) {
  return concat("control: rank 0 of ", settings.size, " on host ", settings.host, ' ', what);
}

}  // namespace

Gathering::Gathering(Settings settings) : settings_(std::move(settings)) {
  if (::getrandom(offer_.token.data(), offer_.token.size(), 0) !=
      static_cast<ssize_t>(offer_.token.size())) {
    throw CommError(of_rank_0(settings_, concat("got no random token: ", std::strerror(errno))));
  }
  offer_.network = settings_.network;
  // Ranks that share rank 0's network need no other way.
  for (const auto& interface : interfaces()) {
    if (interface.loopback) listen_on(interface);
  }
  const auto on_loopback = offer_.count;
  for (const auto& interface : usable_interfaces(settings_.interface)) {
    if (!interface.loopback) listen_on(interface);
  }
  // An address may be of no use yet, or any more, where others are.
  if (offer_.count == 0 || (offer_.count == on_loopback && !problem_.empty())) {
    throw CommError(of_rank_0(
        settings_, concat("has no address to listen on", problem_.empty() ? "" : ": ", problem_)));
  }
}

void Gathering::listen_on(const Interface& interface) {
  for (const auto& address : interface.addresses) {
    if (offer_.count == offer_.addresses.size() || listen_on(address)) continue;
    problem_ = concat(interface.name, ' ', address.host(), ": ", std::strerror(errno));
    log::warn(of_rank_0(settings_, concat("cannot listen on ", problem_)));
  }
}

bool Gathering::listen_on(const Address& address) {
  const auto any_port = address.with_port(0);
  Descriptor made(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made || ::bind(made.get(), any_port.get(), any_port.length()) != 0 ||
      ::listen(made.get(), SOMAXCONN) != 0) {
    return false;
  }
  offer_.addresses[offer_.count++] = Address::local(made.get());
  listening_.push_back(std::move(made));
  return true;
}

std::vector<Member> Gathering::wait() {
  detail::Deadline until(settings_.timeout);
  while (static_cast<int>(members_.size()) < settings_.size - 1) {
    look();
    if (until.passed()) {
      end({.timeout = true,
           .text = of_rank_0(settings_, concat("waited ", settings_.timeout.count() / 1000.0,
                                               " s for ", missing(), refused_)),
           .rank = missing_ranks().front()});
    }
    await_news(until);
  }
  listening_.clear();
  for (auto& stranger : strangers_) refuse(stranger, "all ranks are here");
  strangers_.clear();
  tell_all({.kind = Kind::all_here});
  std::ranges::sort(members_, {}, &Member::rank);
  return std::move(members_);
}

void Gathering::look() {
  try {
    settings_.look();
  } catch (const CommError& error) {
    tell_all(told(failure_of(error)));
    throw;
  }
}

void Gathering::await_news(detail::Deadline& until) {
  std::vector<pollfd> waiting;
  const auto watch_fd = [&](int fd) {
    waiting.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  };
  for (const auto& socket : listening_) watch_fd(socket.get());
  for (const auto& stranger : strangers_) watch_fd(stranger.connection.fd());
  for (const auto& member : members_) watch_fd(member.connection.fd());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until.left());
  const auto nap = std::min<std::chrono::milliseconds>(left, between_looks);
  if (::poll(waiting.data(), waiting.size(), static_cast<int>(nap.count())) < 0) return;

  auto news = waiting.begin();
  const auto listening = news;
  news += static_cast<std::ptrdiff_t>(listening_.size());
  const auto heard = strangers_.size(), known = members_.size();
  std::deque<Stranger> still;
  for (std::size_t i = 0; i < heard; ++i, ++news) {
    auto& stranger = strangers_[i];
    if (news->revents != 0 && !hear(stranger)) continue;
    if (Clock::now() - stranger.since > patience) {
      refuse(stranger, "it said nothing");
      continue;
    }
    still.push_back(std::move(stranger));
  }
  strangers_ = std::move(still);
  for (std::size_t i = 0; i < known; ++i, ++news) {
    if (news->revents != 0) watch(members_[i]);
  }
  for (std::size_t i = 0; i < listening_.size(); ++i) {
    if (listening[static_cast<std::ptrdiff_t>(i)].revents != 0) let_come(listening_[i].get());
  }
}

void Gathering::let_come(int listening) {
  for (;;) {
    Descriptor socket(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      strangers_.push_back({.connection = Connection(std::move(socket))});
      const auto most = static_cast<std::size_t>(settings_.size) + spare;
      if (strangers_.size() <= most) continue;
    } else if (errno != EMFILE && errno != ENFILE) {
      return;  // no connection is waiting, or it has closed
    } else if (strangers_.empty()) {
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      end({.text = of_rank_0(settings_, concat("may open no file more for the connections of ",
                                               missing(), ": raise ulimit -n, now ", limit.rlim_cur,
                                               ", by the number of ranks"))});
    }
    refuse(strangers_.front(), "too many have come and said nothing");
    strangers_.pop_front();
  }
}

bool Gathering::hear(Stranger& stranger) {
  const bool open = stranger.connection.receive();
  std::optional<Frame> frame;
  try {
    frame = stranger.connection.next();
  } catch (const CommError& error) {
    refuse(stranger, error.what());
    return false;
  }
  if (frame && frame->kind == Kind::hello && frame->payload.size() == sizeof(Hello)) {
    take(stranger, frame->payload);
    return false;
  }
  if (frame) refuse(stranger, "not how a rank of this Lockstep comes");
  if (!frame && !open) refuse(stranger, "it has gone without saying who it is");
  return !frame && open;
}

void Gathering::take(Stranger& stranger, const std::string& bytes) {
  Hello hello;
  std::memcpy(&hello, bytes.data(), sizeof hello);
  if (hello.token != offer_.token) {
    return refuse(stranger, "it is of another world: its token differs");
  }
  const std::string host = text_of(hello.host), version = text_of(hello.version);
  const auto who = concat("rank ", hello.rank, " on host ", host);
  Member member{.connection = std::move(stranger.connection),
                .rank = hello.rank,
                .host = host,
                .heartbeat = settings_.heartbeat};
  const auto same = std::ranges::find(members_, hello.rank, &Member::rank);
  std::string wrong;
  if (version != settings_.version) {
    wrong = concat("control: ", who, " is of Lockstep ", version, ", rank 0 on host ",
                   settings_.host, " of ", settings_.version);
  } else if (hello.size != settings_.size) {
    wrong = concat("control: ", who, " expects a world of ", detail::plural(hello.size, "rank"),
                   ", rank 0 on host ", settings_.host, " one of ", settings_.size);
  } else if (hello.rank < 1 || hello.rank >= settings_.size) {
    wrong = concat("control: ", who, " came, expected ranks 1 to ", settings_.size - 1);
  } else if (same != members_.end()) {
    wrong = concat("control: two processes say that they are rank ", hello.rank, " of ",
                   settings_.size, ": on host ", same->host, " and on host ", host);
  }
  if (!wrong.empty()) {
    members_.push_back(std::move(member));  // hears it as well
    end({.text = wrong, .rank = hello.rank});
  }
  Greeting greeting{.token = offer_.token, .heartbeat = settings_.heartbeat.count()};
  set_text(greeting.host, settings_.host);
  member.connection.send({.kind = Kind::accepted, .payload = bytes_of(greeting)});
  log::debug(concat("control: ", who, " came from ", member.connection.peer().text()));
  members_.push_back(std::move(member));
}

void Gathering::watch(Member& member) {
  const bool open = member.connection.receive();
  while (const auto frame = member.connection.next()) {
    if (const auto failure = failure_in(*frame)) end(*failure);
  }
  if (open) return;
  end({.text = concat("control: rank ", member.rank, " on host ", member.host, " has ended while ",
                      missing(), " had still to come"),
       .rank = member.rank});
}

void Gathering::refuse(Stranger& stranger, const std::string& why) {
  const auto who = stranger.connection.peer().text();
  refused_ = concat("; refused ", who, ": ", why);
  log::warn(of_rank_0(settings_, concat("refused ", who, ": ", why)));
  stranger.connection.send(
      {.kind = Kind::refused, .payload = of_rank_0(settings_, concat("refuses: ", why))});
}

void Gathering::end(const Failure& failure) {
  listening_.clear();
  tell_all(told(failure));
  raise(failure);
}

void Gathering::tell_all(const Frame& frame) {
  for (auto& member : members_) member.connection.send(frame);
}

std::vector<int> Gathering::missing_ranks() const {
  std::vector<bool> here(static_cast<std::size_t>(settings_.size));
  for (const auto& member : members_) {
    if (member.rank > 0 && member.rank < settings_.size) {
      here[static_cast<std::size_t>(member.rank)] = true;
    }
  }
  std::vector<int> ranks;
  for (int rank = 1; rank < settings_.size; ++rank) {
    if (!here[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

std::string Gathering::missing() const { return detail::rank_list(missing_ranks()); }

}  // namespace lockstep::control
