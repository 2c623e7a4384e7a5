#include "launch/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <exception>
#include <string_view>

#include "core/text.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
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
  for (std::string_view rest = message; !rest.empty();) {
    const auto written = write(out, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) _exit(1);
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  _exit(0);
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
