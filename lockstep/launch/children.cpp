#include "lockstep/launch/children.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace lockstep::launch {
namespace {

/// Whether there is any child, without looking through all processes of the machine.
bool have_children() {
  siginfo_t info{};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

pid_t parent_of(const std::filesystem::path& process) {
  std::ifstream in(process / "stat");
  std::string line;
  std::getline(in, line);
  const auto name_end = line.rfind(')');  // the name before it may hold anything
  if (name_end == std::string::npos) return -1;
  std::istringstream fields(line.substr(name_end + 1));
  char state = 0;
  pid_t parent = -1;
  fields >> state >> parent;
  return parent;
}

}  // namespace

std::set<pid_t> children() {
  std::set<pid_t> found;
  if (!have_children()) return found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const auto name = entry.path().filename().string();
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || end != name.data() + name.size()) continue;
    if (parent_of(entry.path()) == getpid()) found.insert(pid);
  }
  return found;
}

void end_children(const std::set<pid_t>& spared) noexcept {
  for (bool any = true; any;) {
    any = false;
    for (const auto pid : children()) {
      if (spared.contains(pid)) continue;
      kill(pid, SIGKILL);
      while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
      any = true;
    }
  }
}

}  // namespace lockstep::launch
