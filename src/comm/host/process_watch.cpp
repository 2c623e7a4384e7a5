#include "comm/host/process_watch.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "core/text.h"

namespace lockstep::inline v0_2::host {

ProcessWatch::ProcessWatch(pid_t pid) : fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
  ended_ = fd_ < 0 && errno == ESRCH;
}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) ::close(fd_);
}

bool ProcessWatch::ended() const {
  pollfd process{.fd = fd_, .events = POLLIN, .revents = 0};
  return ended_ || (fd_ >= 0 && ::poll(&process, 1, 0) > 0);
}

LauncherWatch::LauncherWatch(pid_t pid, std::string name) : name_(std::move(name)) {
  if (pid > 1) process_.emplace(pid);
}

std::optional<std::string> LauncherWatch::ended() const {
  if (!process_ || !process_->ended()) return std::nullopt;
  return detail::concat("the launcher of the ranks, ", name_, ", has ended");
}

std::uint64_t pid_space() {
  struct stat found {};
  return ::stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

void tell_pid(RankState& state, pid_t pid) {
  state.pid_space = pid_space();
  state.pid.store(pid, std::memory_order_release);
}

}  // namespace lockstep::host
