#include "comm/host/peer_watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "comm/flight/flight_record.h"
#include "comm/host/world/rank_end.h"
#include "core/system/process.h"
#include "core/text.h"

namespace lockstep::inline v0_2::host {

ProcessWatch::ProcessWatch(pid_t pid)
    : fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))), ended_(!fd_ && errno == ESRCH) {}

bool ProcessWatch::ended(std::chrono::milliseconds within) const {
  pollfd process{.fd = fd(), .events = POLLIN, .revents = 0};
  return ended_ || (fd_ && ::poll(&process, 1, static_cast<int>(within.count())) > 0);
}

LauncherWatch::LauncherWatch(pid_t pid, std::string name) : name_(std::move(name)) {
  if (pid > 1) process_.emplace(pid);
}

std::optional<std::string> LauncherWatch::ended() const {
  if (!process_ || !process_->ended()) return std::nullopt;
  return detail::concat("the launcher of the ranks, ", name_, ", has ended");
}

void publish_pid(RankState& state, pid_t pid) { set_pid(state, pid, detail::pid_namespace()); }

// Note [How ranks watch processes]
// A waiting rank watches the processes of the ranks that it waits for, by pidfds. These detect an
// end at once, also if the pid is reused. `lockstep run` records how ranks end, so other ranks wait
// a second before they mark a rank as ended themselves. They must do so if the launcher is stopped.
// Ranks also watch the launcher. Only `lockstep run` has a guardian process that ends ranks:
// without the watch, ranks would continue to train after mpirun or torchrun was killed.
// A stopped launcher does not end the world. When Ctrl-Z stops `lockstep run`, it stops its ranks,
// and all of them continue together.

namespace {

using Clock = std::chrono::steady_clock;

/// Longest time that `lockstep run` needs to mark a rank whose process has ended, and that a
/// failing rank needs to end.
constexpr auto end_timeout = std::chrono::seconds(1);

}  // namespace

PeerWatch::PeerWatch(World& world, const Options& options)
    : world_(world),
      watches_(options.watch),
      supervised_(options.supervised),
      pid_namespace_(detail::pid_namespace()),
      peers_(static_cast<std::size_t>(world.size())) {}

pid_t PeerWatch::pid_of(int rank) const { return host::pid_of(world_.rank(rank), pid_namespace_); }

bool PeerWatch::has_ended(int rank) {
  auto& [process, ended] = peers_[static_cast<std::size_t>(rank)];
  const pid_t pid = pid_of(rank);
  // A rank in another pid namespace cannot be watched; the timeout detects its end.
  if (!process && pid != 0) process.emplace(pid);
  if (!process || !process->ended()) return false;
  if (!ended) ended = Clock::now();
  return !supervised_ || Clock::now() - *ended >= end_timeout;
}

RankStatus PeerWatch::status_of(int rank) {
  return watch_status(
      world_.rank(rank), [&] { return watches_ && has_ended(rank); },
      [&] { world_.mark_ended(rank, "its process ended"); });
}

bool PeerWatch::is_stopped(int rank) const {
  const pid_t pid = pid_of(rank);
  return pid != 0 && pid != ::getpid() && detail::read_process(pid).stopped();
}

void PeerWatch::await_end(int rank) const {
  const pid_t pid = pid_of(rank);
  if (pid != 0 && pid != ::getpid()) ProcessWatch(pid).ended(end_timeout);
}

}  // namespace lockstep::host
