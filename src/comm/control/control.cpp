#include "comm/control/control.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "core/log.h"
#include "core/process.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How ranks of several hosts watch one another]
// Every rank has a connection to rank 0, which forwards a rank's failure to all others. A cause
// therefore needs two hops at most. A process that ends closes its connection, which is a failure
// of the world unless the rank has left before. A link that is cut closes nothing, so both ends
// send heartbeats. An end that receives none for too long gives up the other's host.
// Silence is measured by a clock of this thread that excludes time in which the process was
// stopped. A rank that continues after a stop therefore reads its connections before it gives up
// any host. After the first cause nothing is watched any more.

namespace lockstep::inline v0_2::control {
namespace {

using detail::concat;
using std::chrono::milliseconds;

/// How long last words may take to leave.
constexpr auto patience = milliseconds(1000);
constexpr auto patience_of_failing = milliseconds(200);
constexpr int beats_per_limit = 4;
/// epoll_wait() takes its timeout as an int of milliseconds.
constexpr auto longest_nap = milliseconds(std::chrono::hours(24));

void watch_fd(int events, int fd, std::uint64_t key) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = key;
  if (::epoll_ctl(events, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw CommError(concat("control: cannot watch a connection: ", std::strerror(errno)));
  }
}

}  // namespace

std::string Control::who(const Peer& peer) {
  return concat("rank ", peer.member.rank, " on host ", peer.member.host);
}

Control::Control(std::vector<Member> others, OnFailure on_failure)
    : on_failure_(std::move(on_failure)),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      process_(::getpid()) {
  if (!events_ || !bell_) {
    throw CommError(concat("control: no file to wait with: ", std::strerror(errno)));
  }
  for (auto& member : others) {
    watch_fd(events_.get(), member.connection.fd(), peers_.size());
    limit_ = member.heartbeat;
    peers_.push_back({.member = std::move(member)});
  }
  watch_fd(events_.get(), bell_.get(), peers_.size());
  try {
    const detail::SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw CommError(concat("control: no thread to watch with: ", error.what()));
  }
}

Control::~Control() {
  if (::getpid() != process_) {
    thread_.detach();  // in a child that was forked there is none
    return;
  }
  give(Order::stop);
  thread_.join();
}

void Control::fail(const Failure& failure) noexcept {
  give(Order::fail, failure);
  await_done(patience_of_failing);
}

void Control::leave() noexcept {
  give(Order::leave);
  await_done(patience);
}

void Control::give(Order order, const Failure& failure) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (order_ != Order::none) return;
    failure_.timeout = failure.timeout;
    failure_.rank = failure.rank;
    failure_.by_program = failure.by_program;
    order_ = order;
    failure_.text = failure.text;
  } catch (const std::bad_alloc&) {
    // Nameless, then.
  }
  const std::uint64_t ring = 1;
  [[maybe_unused]] const auto written = ::write(bell_.get(), &ring, sizeof ring);
}

void Control::await_done(milliseconds limit) noexcept {
  std::unique_lock lock(mutex_);
  done_told_.wait_for(lock, limit, [&] { return done_; });
}

void Control::run() noexcept {
  try {
    watch();
    send_rest();
  } catch (const std::exception& error) {
    log::warn(concat("control: ", error.what()));
    on_failure_({.text = concat("control: ", error.what())});
  }
  const std::lock_guard lock(mutex_);
  done_ = true;
  done_told_.notify_all();
}

bool Control::look_at_clock(milliseconds interval) {
  const auto now = Clock::now();
  const auto step = now - std::exchange(looked_, now);
  const bool ran = step <= 2 * interval;
  if (ran) running_ += step;
  return ran;
}

void Control::watch() {
  const auto interval = std::max(limit_ / beats_per_limit, milliseconds(1));
  for (auto& peer : peers_) take(peer);  // what came with the last words of the meeting
  auto next_beat = running_;
  looked_ = Clock::now();
  while (!over_) {
    if (running_ >= next_beat) {
      beat();
      next_beat = running_ + interval;
      if (over_) return;
    }
    std::array<epoll_event, 64> events;
    const auto left = std::min(std::chrono::ceil<milliseconds>(next_beat - running_), longest_nap);
    const int news = ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()),
                                  static_cast<int>(left.count()));
    if (!look_at_clock(interval)) next_beat = running_;  // the others miss a heartbeat
    for (int i = 0; i < news && !over_; ++i) {
      const auto key = events[static_cast<std::size_t>(i)].data.u64;
      if (key == peers_.size()) {
        obey();
      } else {
        hear(peers_[key]);
      }
    }
  }
}

void Control::obey() {
  const std::lock_guard lock(mutex_);
  if (order_ == Order::none) return;
  over_ = true;
  if (order_ == Order::fail) end(failure_, nullptr, true);
  if (order_ == Order::leave) tell_all({.kind = Kind::left});
}

void Control::hear(Peer& peer) {
  const bool open = peer.member.connection.receive();
  take(peer);
  if (open || over_) return;
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, peer.member.connection.fd(), nullptr);
  if (!peer.here) return;
  const int code = peer.member.connection.error();
  found(code == 0 ? concat(who(peer), " has ended")
                  : concat("the connection to ", who(peer), " broke: ", std::strerror(code)),
        peer.member.rank, &peer);
}

void Control::take(Peer& peer) {
  const auto next = [&]() -> std::optional<Frame> {
    if (over_) return std::nullopt;
    try {
      return peer.member.connection.next();
    } catch (const CommError& error) {
      end({.text = concat(who(peer), ": ", error.what()), .rank = peer.member.rank}, &peer, false);
      return std::nullopt;
    }
  };
  while (const auto frame = next()) {
    peer.heard = running_;
    if (frame->kind == Kind::left) peer.here = false;
    if (const auto failure = failure_in(*frame)) end(*failure, &peer, false);
  }
}

void Control::beat() {
  for (auto& peer : peers_) {
    if (peer.here && peer.member.connection.flush()) {
      peer.member.connection.send({.kind = Kind::heartbeat});
    }
  }
  const auto silent = std::ranges::find_if(
      peers_, [&](const Peer& peer) { return peer.here && running_ - peer.heard > limit_; });
  if (silent != peers_.end()) found(silence(*silent), silent->member.rank, nullptr);
}

std::string Control::silence(const Peer& silent) const {
  const auto tenths =
      std::chrono::duration_cast<milliseconds>(running_ - silent.heard).count() / 100;
  const auto how_long = concat(" for ", tenths / 10, '.', tenths % 10, " s");
  const auto& host = silent.member.host;
  std::vector<int> quiet;
  for (const auto& peer : peers_) {
    if (!peer.here || peer.member.host != host) continue;
    // Ranks do not beat at the same time: where one was cut off, the others soon are, too.
    if (running_ - peer.heard < limit_ / 2) {
      return concat("no heartbeat from ", who(silent), how_long);
    }
    quiet.push_back(peer.member.rank);
  }
  return concat("no heartbeat from host ", host, " (", detail::rank_list(quiet), ")", how_long);
}

void Control::found(const std::string& cause, int rank, const Peer* from) {
  // The launcher may end this rank before its own thread has come to say it.
  const auto line = concat("lockstep: ", cause, '\n');
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  end({.text = cause, .rank = rank}, from, false);
}

void Control::end(const Failure& failure, const Peer* from, bool own) {
  over_ = true;
  tell_all(told(failure), from);
  if (own) return;
  log::debug(concat("control: ", failure.text));
  on_failure_(failure);
}

void Control::tell_all(const Frame& frame, const Peer* but) {
  for (auto& peer : peers_) {
    if (peer.here && &peer != but) peer.member.connection.send(frame);
  }
}

void Control::send_rest() {
  const auto until = Clock::now() + patience;
  for (;;) {
    std::vector<pollfd> waiting;
    for (auto& peer : peers_) {
      if (peer.here && !peer.member.connection.flush()) {
        waiting.push_back({.fd = peer.member.connection.fd(), .events = POLLOUT, .revents = 0});
      }
    }
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    if (waiting.empty() || left <= 0) return;
    ::poll(waiting.data(), waiting.size(), static_cast<int>(left));
  }
}

}  // namespace lockstep::control
