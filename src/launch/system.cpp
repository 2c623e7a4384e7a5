#include "launch/system.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string_view>
#include <thread>

#include "core/environment.h"
#include "core/signal_safe_text.h"
#include "core/system/files.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {

void throw_system(std::string_view what) {
  const int error = errno;
  throw CommError(detail::concat(
      "the launcher cannot ", what, ": ", std::strerror(error),
      error == EAGAIN
          ? "; raise the limit of processes: ulimit -u, or pids.max of the control group"
          : ""));
}

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_system("make a pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

FileLimit::FileLimit(unsigned long needed) {
  if (getrlimit(RLIMIT_NOFILE, &before_) != 0) throw_system("read its limit of open files");
  if (before_.rlim_cur >= needed) return;
  if (before_.rlim_max < needed) {
    throw CommError(detail::concat("the launcher needs ", needed,
                                   " open files for this many ranks, but the limit is ",
                                   before_.rlim_max, " (ulimit -Hn)"));
  }
  const rlimit raised{.rlim_cur = needed, .rlim_max = before_.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) != 0) throw_system("raise its limit of open files");
}

void FileLimit::restore() const noexcept { setrlimit(RLIMIT_NOFILE, &before_); }

void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is fd, as all below it are open.
    if (open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) throw_system("open /dev/null");
  }
}

namespace {

bool ends_with_stdin = false;

}  // namespace

void end_with_stdin() {
  ends_with_stdin = true;
  std::thread([] {
    const detail::SignalsBlocked blocked;
    char ignored = 0;
    for (ssize_t count = 1; count > 0 || (count < 0 && errno == EINTR);) {
      count = read(STDIN_FILENO, &ignored, 1);
    }
    kill(getpid(), SIGTERM);
    for (;;) pause();  // the end of the thread would unblock the signal in it
  }).detach();
}

bool stdin_ended() {
  constexpr int milliseconds = 100;  // sshd may close stdout, which a rank's line shows, before it
  pollfd end{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ends_with_stdin && poll(&end, 1, milliseconds) == 1;
}

namespace {

using detail::concat;
using std::filesystem::path;

/// The reason why the file cannot be executed; empty if it can.
std::string obstacle(const path& file) {
  std::error_code none;
  if (std::filesystem::is_directory(file, none)) return "it is a directory";
  if (access(file.c_str(), X_OK) == 0) return {};
  return errno == EACCES ? "it is not executable (chmod +x)" : std::strerror(errno);
}

}  // namespace

path find_program(const std::string& name, std::string_view search_path) {
  if (name.empty()) throw InvalidArgument("no program given to run");
  if (name.find('/') != std::string::npos) {
    const auto why = obstacle(name);
    if (!why.empty()) throw InvalidArgument(concat("cannot run '", name, "': ", why));
    return name;
  }
  std::string why;
  for (const auto& folder : detail::lines_in(std::string(search_path), ':')) {
    const auto file = path(folder.empty() ? "." : folder) / name;
    const auto found = obstacle(file);
    if (found.empty()) return file;
    if (why.empty() && std::filesystem::exists(file)) why = concat(file.string(), ": ", found);
  }
  if (why.empty()) why = "no such program in PATH";
  const bool here = obstacle(path(".") / name).empty();
  throw InvalidArgument(concat("cannot run '", name, "': ", why,
                               here ? concat("; did you mean ./", name, "?") : std::string()));
}

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

std::set<pid_t> children() {
  std::set<pid_t> found;
  siginfo_t info{};
  // Without a child, this is cheaper than to read all of /proc.
  if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return found;
  const pid_t self = getpid();
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const auto pid = detail::parse_number<pid_t>(entry.path().filename().string());
    if (pid && detail::read_process(*pid).parent == self) found.insert(*pid);
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
    const auto nap = std::chrono::ceil<std::chrono::milliseconds>(left);
    pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
    poll(&ended, 1, static_cast<int>(nap.count()));
  }
}

std::set<pid_t> end_children(const std::set<pid_t>& spared,
                             std::chrono::milliseconds time) noexcept {
  const auto until = std::chrono::steady_clock::now() + time;
  std::set<pid_t> surviving;
  for (bool any = true; any;) {
    any = false;
    for (const auto pid : children()) {
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
    case 't':
      return "stopped by a signal or a debugger";
    default:
      return "ending";
  }
}

std::string survivor_text(const std::string& what, pid_t pid) {
  const auto process = detail::read_process(pid);
  return concat(what, " (pid ", pid, ", ", state_text(process.state), ")");
}

namespace {

using Clock = std::chrono::steady_clock;

/// First byte of the child's message.
constexpr char returned = '+';
constexpr char thrown = '-';

[[noreturn]] void run_in_child(const std::function<std::string()>& function, int pipe,
                               pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  // If standard descriptors are closed, the pipe may have one of their numbers.
  const int out = fcntl(pipe, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  std::string message;
  try {
    message = returned + function();
  } catch (const std::exception& error) {
    message = concat(thrown, error.what());
  }
  _exit(detail::write_all(out, message.data(), message.size()) ? 0 : 1);
}

/// Reads to the end of the pipe. False if the time has come before.
bool read_all(int fd, Clock::time_point until, std::string& text) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    const int found = poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (found < 0 && errno == EINTR) continue;
    if (found <= 0) return false;
    std::array<char, 4096> part{};
    const auto got = read(fd, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

Probed probe(const std::function<std::string()>& function, std::chrono::milliseconds limit) {
  auto pipe = make_pipe();
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw_system("start a process");
  if (child == 0) run_in_child(function, pipe.write.get(), parent);
  pipe.write.reset();

  std::string message;
  const bool complete = read_all(pipe.read.get(), Clock::now() + limit, message);
  if (!complete) kill(child, SIGKILL);
  std::string ended = "ended early";
  // SIGKILL does not end a process that waits in the kernel, as for a driver that hangs.
  if (await_end(child, Clock::now() + kill_time)) {
    if (const auto ending = ending_of(child)) ended = concat("ended early: ", ending->text());
    waitpid(child, nullptr, 0);
  }
  if (!complete) {
    const auto seconds = std::chrono::duration<double>(limit).count();
    return {.text = {}, .problem = concat("no answer within ", seconds, " s")};
  }
  if (message.starts_with(returned)) return {.text = message.substr(1), .problem = {}};
  if (message.starts_with(thrown)) return {.text = {}, .problem = message.substr(1)};
  return {.text = {}, .problem = ended};
}

}  // namespace lockstep::launch
