#include "comm/control/control.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "core/log.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How ranks of several hosts watch one another]
// Every rank has a connection to rank 0, which sends a rank's failure to all ranks. A failure
// therefore needs at most two hops. If ranks fail at the same time, the first failure that rank 0
// has is that of all: a rank that fails waits for the answer of rank 0.
// A process that ends closes its connection, which is a failure of the world unless the rank has
// left before, or said that it may end. A link that fails closes no connection, so both sides send
// heartbeats. A side that receives none for 2 s suspects the other side's host, and one that
// receives none for the limit reports a failure. The limit is 15 s because before Linux 6.15, TCP
// doubles the time between retransmissions: after an outage of 10 s, the first frame arrives up to
// 14.3 s after the last.
// The time without heartbeats excludes time in which this process was stopped. A rank that
// continues after a stop therefore reads its connections before it reports a failure. After the
// first failure, nothing is checked any more. On each rank, on_failure_ makes it the world's
// failure: MessageRankContext::record().

namespace lockstep::inline v0_2::control {
namespace {

using detail::concat;
using std::chrono::milliseconds;

/// Longest time to send the last frames.
constexpr auto send_timeout = milliseconds(1000);
constexpr auto crash_timeout = milliseconds(200);
constexpr auto answer_timeout = milliseconds(1000);
constexpr auto longest_until_suspicion = milliseconds(2000);
constexpr int heartbeats_per_suspicion = 4;
constexpr auto between_flushes = milliseconds(2);

std::string in_seconds(std::chrono::steady_clock::duration time) {
  const auto tenths = std::chrono::duration_cast<milliseconds>(time).count() / 100;
  return concat(tenths / 10, '.', tenths % 10, " s");
}

void watch_fd(int events, int fd, std::uint64_t key) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = key}};
  if (::epoll_ctl(events, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw CommError(concat("control: cannot watch a connection: ", std::strerror(errno)));
  }
}

}  // namespace

std::string Control::who(const Peer& peer) {
  return concat("rank ", peer.member.rank, " on host ", peer.member.host);
}

Control::Control(std::vector<Member> others, OnFailure on_failure, StatusSource status)
    : on_failure_(std::move(on_failure)),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      process_(::getpid()) {
  if (!events_ || !wake_event_) {
    throw CommError(
        concat("control: cannot create a descriptor to wait with: ", std::strerror(errno)));
  }
  std::vector<StatusRelay::Peer> ranks;
  for (auto& member : others) {
    watch_fd(events_.get(), member.connection.fd(), peers_.size());
    limit_ = member.heartbeat;
    member.connection.allow_silence(limit_);
    ranks.push_back({.rank = member.rank, .host = member.host});
    peers_.push_back({.member = std::move(member)});
  }
  suspicion_ = std::min(longest_until_suspicion, limit_ / 2);
  watch_fd(events_.get(), wake_event_.get(), peers_.size());
  const auto send = [this](int rank, const Frame& frame) {
    for (auto& peer : peers_) {
      if (peer.member.rank == rank && peer.present) peer.member.connection.send(frame);
    }
  };
  relay_.emplace(std::move(status), std::move(ranks), send, [this] { return suspicions(); });
  if (relay_->fd() >= 0) watch_fd(events_.get(), relay_->fd(), peers_.size() + 1);
  try {
    const detail::SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw CommError(concat("control: cannot start the control thread: ", error.what()));
  }
}

Control::~Control() {
  if (::getpid() != process_) {
    thread_.detach();  // a forked child process has no such thread
    return;
  }
  send_command(Command::stop);
  thread_.join();
}

Failure Control::fail(const Failure& failure) noexcept {
  await(Command::fail, failure);
  const std::lock_guard lock(mutex_);
  const auto& first = done_ && first_ ? *first_ : failure;
  return first.with(first.text);
}

void Control::fail_by_crash(std::string_view text, int rank) noexcept {
  crash_text_ << text;
  crashed_rank_ = rank;
  has_crashed_.store(true);
  const std::uint64_t wake = 1;
  [[maybe_unused]] const auto written = ::write(wake_event_.get(), &wake, sizeof wake);
  detail::poll_until([this] { return has_ended_.load(); }, crash_timeout);
}

void Control::send_command(Command command, const Failure& failure) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (command_ != Command::none && command_ != Command::announce_end) return;
    failure_ = failure.with(failure.text);
    command_ = command;
  }
  const std::uint64_t wake = 1;
  [[maybe_unused]] const auto written = ::write(wake_event_.get(), &wake, sizeof wake);
}

void Control::await(Command command, const Failure& failure) noexcept {
  send_command(command, failure);
  std::unique_lock lock(mutex_);
  done_changed_.wait_for(lock, answer_timeout, [&] { return done_ || command_ == Command::none; });
}

void Control::run() noexcept {
  try {
    watch();
    std::vector<Connection*> connections;
    for (auto& peer : peers_) {
      if (peer.present) connections.push_back(&peer.member.connection);
    }
    flush(connections, send_timeout);
    if (is_asking_) {
      const auto answer = await_failure(peers_.front().member.connection, answer_timeout);
      if (answer) first_ = answer;
    }
  } catch (const std::exception& error) {
    log::warn(concat("control: ", error.what()));
    on_failure_({.text = concat("control: ", error.what())});
  }
  has_ended_.store(true);
  const std::lock_guard lock(mutex_);
  done_ = true;
  done_changed_.notify_all();
}

bool Control::update_clock(milliseconds interval) {
  const auto now = Clock::now();
  const auto step = now - std::exchange(last_reading_, now);
  const bool ran = step <= 2 * interval;
  if (ran) running_ += step;
  if (!ran) last_stop_ = {.length = step, .end = running_};
  return ran;
}

void Control::watch() {
  const auto interval = std::max(suspicion_ / heartbeats_per_suspicion, milliseconds(1));
  for (auto& peer : peers_) process_frames(peer);  // frames that arrived during the rendezvous
  auto next_heartbeat = running_;
  last_reading_ = Clock::now();
  while (!over_) {
    if (running_ >= next_heartbeat) {
      exchange_heartbeats();
      next_heartbeat = running_ + interval;
      if (over_) return;
    }
    std::array<epoll_event, 64> events;
    // Answers to questions may not fit into the buffers of sockets.
    const bool flushed = std::ranges::all_of(
        peers_, [](Peer& peer) { return !peer.present || peer.member.connection.flush(); });
    auto left = std::chrono::ceil<milliseconds>(next_heartbeat - running_);
    if (!flushed) left = std::min(left, between_flushes);
    const int ready = ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()),
                                   static_cast<int>(left.count()));
    if (!update_clock(interval)) next_heartbeat = running_;  // other ranks have missed a heartbeat
    for (int i = 0; i < ready && !over_; ++i) {
      const auto key = events[static_cast<std::size_t>(i)].data.u64;
      if (key == peers_.size()) {
        run_command();
      } else if (key > peers_.size()) {
        relay_->on_ready();
      } else {
        read_from(peers_[key]);
      }
    }
  }
}

void Control::run_command() {
  std::uint64_t woken = 0;
  [[maybe_unused]] const auto got = ::read(wake_event_.get(), &woken, sizeof woken);
  if (has_crashed_.load()) {
    over_ = true;
    return end_by({.kind = Failure::Kind::crashed,
                   .rank = crashed_rank_,
                   .text = std::string(crash_text_.view())},
                  nullptr, true);
  }
  const std::lock_guard lock(mutex_);
  if (command_ == Command::none) return;
  if (command_ == Command::announce_end) {
    send_to_all({.kind = Kind::ending});
    command_ = Command::none;
    done_changed_.notify_all();
    return;
  }
  over_ = true;
  if (command_ == Command::fail) {
    end_by(failure_, nullptr, true);
    is_asking_ = !is_rank_0();
  }
  if (command_ == Command::leave) send_to_all({.kind = Kind::left});
}

void Control::read_from(Peer& peer) {
  const bool open = peer.member.connection.receive();
  process_frames(peer);
  if (open || over_) return;
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, peer.member.connection.fd(), nullptr);
  if (peer.may_end) peer.present = false;
  if (!peer.present) return;
  const int code = peer.member.connection.error();
  report_failure(code == 0
                     ? concat(who(peer), " has ended", after_stop())
                     : concat("the connection to ", who(peer), " broke: ", std::strerror(code)),
                 peer.member.rank, &peer);
}

std::string Control::after_stop() const {
  // The other ranks have counted this host as lost. What they sent may arrive after their end.
  if (last_stop_.length <= limit_ || running_ - last_stop_.end > limit_) return {};
  return concat("; this process had been stopped for ", in_seconds(last_stop_.length),
                ", longer than LOCKSTEP_HEARTBEAT, ", limit_.count() / 1000.0, " s");
}

void Control::process_frames(Peer& peer) {
  try {
    while (!over_) {
      const auto frame = peer.member.connection.next();
      if (!frame) return;
      peer.suspected = false;
      peer.last_frame = running_;
      if (frame->kind == Kind::ending) peer.may_end = true;
      if (frame->kind == Kind::left) {
        peer.present = false;
        another_has_left_ = true;
      }
      if (frame->kind == Kind::question || frame->kind == Kind::answer) relay_->on_frame(*frame);
      if (const auto failure = failure_in(*frame)) {
        // The rank that has sent it waits for the answer of rank 0.
        end_by(*failure, is_rank_0() ? nullptr : &peer, false);
      }
    }
  } catch (const CommError& error) {
    end_by({.rank = peer.member.rank, .text = concat(who(peer), ": ", error.what())}, nullptr,
           false);
  }
}

void Control::exchange_heartbeats() {
  for (auto& peer : peers_) {
    if (peer.present && peer.member.connection.flush()) {
      peer.member.connection.send({.kind = Kind::heartbeat});
    }
  }
  const auto silent = std::ranges::find_if(peers_, [&](const Peer& peer) {
    return peer.present && running_ - peer.last_frame > limit_;
  });
  if (silent != peers_.end()) {
    return report_failure(silence(*silent), silent->member.rank, nullptr);
  }
  for (const auto& peer : peers_) {
    if (peer.present && !peer.suspected && running_ - peer.last_frame > suspicion_) {
      suspect_host_of(peer);
    }
  }
}

void Control::suspect_host_of(const Peer& late) {
  for (auto& peer : peers_) {
    // Ranks do not send heartbeats at the same time. If the link to the host failed, the others are
    // late, too.
    if (peer.present && peer.member.host == late.member.host &&
        running_ - peer.last_frame > suspicion_ / 2) {
      peer.suspected = true;
    }
  }
  log::notice(suspicion(late));
}

std::vector<std::string> Control::suspicions() const {
  std::vector<std::string> texts;
  std::set<std::string_view> hosts;
  for (const auto& peer : peers_) {
    if (peer.present && peer.suspected && hosts.insert(peer.member.host).second) {
      texts.push_back(suspicion(peer));
    }
  }
  return texts;
}

std::string Control::suspicion(const Peer& suspected) const {
  return concat(silence(suspected), ": suspected, and counts as lost after ",
                limit_.count() / 1000.0, " s");
}

std::string Control::silence(const Peer& suspected) const {
  const auto& host = suspected.member.host;
  std::vector<int> ranks;
  for (const auto& peer : peers_) {
    if (peer.present && peer.suspected && peer.member.host == host)
      ranks.push_back(peer.member.rank);
  }
  return concat("no heartbeat from host ", host, " (", detail::rank_list(ranks), ") for ",
                in_seconds(running_ - suspected.last_frame));
}

void Control::report_failure(const std::string& cause, int rank, const Peer* from) {
  // Print now: the launcher may end this rank before its own thread raises the error.
  log::notice(cause);
  end_by({.rank = rank, .text = cause}, from, false);
}

void Control::end_by(const Failure& failure, const Peer* from, bool own) {
  over_ = true;
  first_ = failure;
  send_to_all(failure_frame(failure), from);
  if (own) return;
  log::debug(concat("control: ", failure.text));
  on_failure_(failure);
}

void Control::send_to_all(const Frame& frame, const Peer* but) {
  for (auto& peer : peers_) {
    if (peer.present && &peer != but) peer.member.connection.send(frame);
  }
}

}  // namespace lockstep::control
