#include "launch/job/children.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/system/process.h"
#include "core/text.h"

namespace lockstep::inline v0_2::launch {
namespace {

/// Whether this process has a child. Cheaper than reading all of /proc.
bool have_children() {
  siginfo_t info{};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace

using detail::concat;

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? concat("SIG", name) : concat("signal ", signal);
}

std::string Ending::text() const {
  return by_signal ? signal_name(code) : concat("exit code ", code);
}

std::optional<Ending> ending_of(pid_t child) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  return Ending{.by_signal = info.si_code != CLD_EXITED, .code = info.si_status};
}

std::set<pid_t> children(pid_t parent) {
  std::set<pid_t> found;
  if (parent == getpid() && !have_children()) return found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const auto name = entry.path().filename().string();
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || end != name.data() + name.size()) continue;
    if (detail::read_process(pid).parent == parent) found.insert(pid);
  }
  return found;
}

bool await_end(pid_t child, std::chrono::steady_clock::time_point until) noexcept {
  const detail::Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  for (;;) {
    siginfo_t info{};
    const int found = waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT);
    if ((found == 0 && info.si_pid == child) || (found != 0 && errno == ECHILD)) return true;
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    // Without pidfds, the child's end is detected by polling.
    constexpr auto longest_nap = std::chrono::milliseconds(20);
    const auto nap = std::chrono::ceil<std::chrono::milliseconds>(left);
    pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
    poll(&ended, 1, static_cast<int>((process ? nap : std::min(nap, longest_nap)).count()));
  }
}

std::set<pid_t> end_children(const std::set<pid_t>& spared,
                             std::chrono::milliseconds time) noexcept {
  const auto until = std::chrono::steady_clock::now() + time;
  std::set<pid_t> surviving;
  for (bool any = true; any;) {
    any = false;
    for (const auto pid : children(getpid())) {
      if (spared.contains(pid) || surviving.contains(pid)) continue;
      kill(pid, SIGKILL);
      if (await_end(pid, until)) {
        waitpid(pid, nullptr, 0);
        any = true;
      } else {
        surviving.insert(pid);
      }
    }
  }
  return surviving;
}

const char* state_text(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'S':
    case 'I':
      return "sleeping";
    case 'D':
      return "in an uninterruptible wait of the kernel";
    case 'T':
      return "stopped by a signal";
    case 't':
      return "stopped by a debugger";
    case 'Z':
    case 'X':
      return "its first thread has ended";
    default:
      return "in an unknown state";
  }
}

std::string program_of(pid_t pid) {
  std::error_code none;
  return std::filesystem::read_symlink(concat("/proc/", pid, "/exe"), none).filename().string();
}

std::string survivor_text(const std::string& what, pid_t pid) {
  const auto process = detail::read_process(pid);
  std::string wait;  // the kernel function in which it waits
  std::ifstream(concat("/proc/", pid, "/wchan")) >> wait;
  return concat(what, " (pid ", pid,
                process.exists() ? concat(", ", state_text(process.state)) : "",
                wait.empty() || wait == "0" ? "" : concat(": ", wait), ")");
}

}  // namespace lockstep::launch
