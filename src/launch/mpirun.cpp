#include "launch/mpirun.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <locale>
#include <optional>
#include <set>
#include <utility>

#include "core/process.h"
#include "core/text.h"
#include "launch/children.h"
#include "launch/ending.h"
#include "launch/output.h"
#include "launch/signal_watch.h"
#include "launch/system.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Until a rank was seen, so that one that ends at once is not missed, and from then on.
constexpr auto between_first_looks = 50ms;
constexpr auto between_looks = 500ms;
/// OpenMPI's mpirun ends in order at the first signal that asks it to, at once at a second one.
constexpr auto between_signals = 1s;
constexpr auto kill_time = 2s;

/// Seconds without traffic, then between probes, and probes without an answer.
constexpr std::array keep_alive{std::pair("OMPI_MCA_oob_tcp_keepalive_time", "10"),
                                std::pair("OMPI_MCA_oob_tcp_keepalive_intvl", "2"),
                                std::pair("OMPI_MCA_oob_tcp_keepalive_probes", "5")};

/// Whether the process was started as a rank: its environment has one of the variables in which an
/// MPI tells a process its number.
bool is_rank(pid_t pid) {
  return detail::has_variable(pid, {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"});
}

/// The kernel lists a process's children, mostly. A child that it leaves out now is there next
/// time.
std::set<pid_t> listed_children(pid_t parent) {
  std::ifstream in(concat("/proc/", parent, "/task/", parent, "/children"));
  if (!in) return children(parent);
  in.imbue(std::locale::classic());
  return {std::istream_iterator<pid_t>(in), {}};
}

class Supervision {
 public:
  explicit Supervision(const MpirunOptions& options) : options_(options) {}

  int run() {
    start();
    while (!ending_of(pid_)) turn();
    const auto ending = *ending_of(pid_);
    waitpid(pid_, nullptr, 0);
    end_descendants();
    return ended_by_us_ ? 1 : ending.exit_code();
  }

 private:
  /// Processes that mpirun leaves behind have become this process's children. OpenMPI's daemons
  /// remove their files at SIGTERM.
  void end_descendants() {
    const auto until = Clock::now() + kill_time;
    for (const auto pid : children(getpid())) {
      if (!before_.contains(pid)) kill(pid, SIGTERM);
    }
    for (const auto pid : children(getpid())) {
      if (!before_.contains(pid)) await_end(pid, until);
    }
    end_children(before_, kill_time);
  }

  void start() {
    const char* path = std::getenv("PATH");
    const auto program =
        find_program(options_.program, path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
    for (const auto& [name, value] : keep_alive) setenv(name, value, 0);
    Words words;
    words.add(options_.program);
    for (const auto& argument : options_.arguments) words.add(argument);
    char* const* const argv = words.get();
    auto obstacle = make_pipe();
    const pid_t supervisor = getpid();
    pid_ = fork();
    if (pid_ < 0) throw_system("start mpirun");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != supervisor) _exit(127);
      signals_.restore();
      execv(program.c_str(), argv);
      const int error = errno;
      [[maybe_unused]] const auto written = write(obstacle.write.get(), &error, sizeof error);
      _exit(127);
    }
    obstacle.write.reset();
    int error = 0;
    while (read(obstacle.read.get(), &error, sizeof error) < 0 && errno == EINTR) {
    }
    if (error == 0) return;
    waitpid(pid_, nullptr, 0);
    throw InvalidArgument(concat("cannot run '", program.string(), "': ", std::strerror(error)));
  }

  void turn() {
    pollfd news{.fd = signals_.fd(), .events = POLLIN, .revents = 0};
    const auto nap = seen_ ? between_looks : between_first_looks;
    poll(&news, 1, static_cast<int>(nap.count()));
    while (const auto event = signals_.next()) handle(*event);
    const auto now = Clock::now();
    if (deadline_) {
      if (now >= *deadline_) escalate();
      return;
    }
    look_at_ranks(now);
  }

  void handle(const signalfd_siginfo& event) {
    const auto signal = static_cast<int>(event.ssi_signo);
    if (signal == SIGTSTP) {
      raise(SIGSTOP);
      return;
    }
    if (signal != SIGINT && signal != SIGTERM && signal != SIGHUP) return;
    // A terminal's signal reaches mpirun by itself: it is in the same process group.
    const bool of_terminal = event.ssi_code == SI_KERNEL;
    if (!of_terminal) kill(pid_, signal);
    if (std::exchange(asked_, true)) deadline_ = Clock::now() + between_signals;
  }

  void look_at_ranks(Clock::time_point now) {
    const auto ranks = listed_children(pid_);
    if (std::ranges::any_of(ranks, is_rank)) {
      seen_ = true;
      since_.reset();
      return;
    }
    if (!seen_) return;
    if (!since_) since_ = now;
    if (now - *since_ < options_.linger) return;
    std::cerr << "lockstep: mpirun (pid " << pid_ << ") still runs " << options_.linger.count()
              << " s after the last rank of this host ended, and is ended now. See what the ranks "
                 "said: the link to another host may be cut. Ranks that said nothing may have been "
                 "ended by a signal."
              << std::endl;
    ended_by_us_ = true;
    escalate();
  }

  void escalate() {
    constexpr int asks = 2;
    kill(pid_, signals_sent_ < asks ? SIGTERM : SIGKILL);
    ++signals_sent_;
    deadline_ = Clock::now() + between_signals;
  }

  const MpirunOptions& options_;
  SignalWatch signals_;
  Subreaper subreaper_;
  std::set<pid_t> before_ = children(getpid());
  pid_t pid_ = -1;
  bool seen_ = false;  ///< a rank
  std::optional<Clock::time_point> since_;
  std::optional<Clock::time_point> deadline_;
  int signals_sent_ = 0;
  bool asked_ = false;
  bool ended_by_us_ = false;
};

}  // namespace

int run_mpirun(const MpirunOptions& options) {
  if (!(options.linger.count() >= 0 && options.linger.count() <= 1e9)) {
    throw InvalidArgument(
        concat("linger: got ", options.linger.count(), " s, expected 0 or more and at most 1e9"));
  }
  open_standard_descriptors();
  return Supervision(options).run();
}

}  // namespace lockstep::launch
