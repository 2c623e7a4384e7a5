#include "launch/guardian.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "comm/flight_record.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::launch {
namespace {

constexpr int registry_descriptor = 3;

/// Closes all descriptors except the registry, such as the launcher's output and the world's
/// memory.
void close_all_except(int registry) {
  if (dup2(registry, registry_descriptor) < 0) _exit(1);
  close_range(registry_descriptor + 1, ~0U, 0);
  const int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < registry_descriptor; ++fd) dup2(null, fd);
  close(null);
  if (chdir("/") != 0) _exit(1);
}

[[noreturn]] void guard(int registry) {
  // A session of its own does not receive signals of the terminal (Ctrl-C, hangup).
  setsid();
  prctl(PR_SET_NAME, "lockstep-guard");
  close_all_except(registry);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);

  std::vector<pid_t> groups;
  for (;;) {
    pid_t group = 0;
    const auto got = read(registry_descriptor, &group, sizeof(group));
    if (got == sizeof(group)) {
      groups.push_back(group);
    } else if (got >= 0 || errno != EINTR) {
      break;
    }
  }
  for (const auto group : groups) killpg(group, SIGKILL);
  detail::remove_flight_records_of(groups);  // a group has the number of its rank
  _exit(0);
}

}  // namespace

Guardian::Guardian() {
  auto pipe = make_pipe();
  pid_ = fork();
  if (pid_ < 0) throw_system("start its guardian process");
  if (pid_ == 0) guard(pipe.read.get());
  registry_ = std::move(pipe.write);
}

Guardian::~Guardian() {
  // SIGKILL, so that it ends in any state, also if it is stopped.
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::add(pid_t group) const noexcept {
  [[maybe_unused]] const auto written = write(registry_.get(), &group, sizeof(group));
}

std::optional<Ending> Guardian::ending() const { return ending_of(pid_); }

}  // namespace lockstep::launch
