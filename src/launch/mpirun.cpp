#include "launch/mpirun.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

#include "comm/flight/flight_record.h"
#include "core/environment.h"
#include "core/system/process.h"
#include "core/text.h"
#include "launch/job/children.h"
#include "launch/job/output.h"
#include "launch/job/signal_watch.h"
#include "launch/system.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Poll interval until a rank was found, short so that a rank that ends soon is not missed; and
/// after that.
constexpr auto first_poll_interval = 50ms;
constexpr auto poll_interval = 500ms;
/// OpenMPI's mpirun ends gracefully at a first signal, at once at a second one.
constexpr auto between_signals = 1s;

/// Lets OpenMPI notice a lost host, but only after the ranks, whose errors it has to forward.
void set_keep_alive() {
  constexpr long idle = 10, probes = 5, longest_interval = 32'767;  // the kernel's
  const auto limit = std::chrono::ceil<std::chrono::seconds>(Environment::get().heartbeat);
  const auto interval = std::min<long>(2 * limit.count() / probes + 1, longest_interval);
  for (const auto& [name, value] : {std::pair("OMPI_MCA_oob_tcp_keepalive_time", idle),
                                    std::pair("OMPI_MCA_oob_tcp_keepalive_intvl", interval),
                                    std::pair("OMPI_MCA_oob_tcp_keepalive_probes", probes)}) {
    setenv(name, concat(value).c_str(), 0);
  }
}

/// Whether the process is a rank: its environment has a variable in which an MPI passes the rank.
bool is_rank(pid_t pid) {
  return detail::has_variable(pid, {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"});
}

/// The children of a process. The kernel's list may omit some; the next read then has them.
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
    while (!ending_of(pid_)) poll_once();
    const auto ending = *ending_of(pid_);
    waitpid(pid_, nullptr, 0);
    end_descendants();
    return ended_by_us_ ? 1 : ending.exit_code();
  }

 private:
  /// Ends processes that mpirun has left, which have become this process's children. SIGTERM first,
  /// so that OpenMPI's daemons remove their files.
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
    set_keep_alive();
    StringArray words;
    words.add(options_.program);
    for (const auto& argument : options_.arguments) words.add(argument);
    char* const* const argv = words.get();
    auto exec_error = make_pipe();
    const pid_t supervisor = getpid();
    pid_ = fork();
    if (pid_ < 0) throw_system("start mpirun");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != supervisor) _exit(127);
      signals_.restore();
      execv(program.c_str(), argv);
      const int error = errno;
      [[maybe_unused]] const auto written = write(exec_error.write.get(), &error, sizeof error);
      _exit(127);
    }
    exec_error.write.reset();
    int error = 0;
    while (read(exec_error.read.get(), &error, sizeof error) < 0 && errno == EINTR) {
    }
    if (error == 0) return;
    waitpid(pid_, nullptr, 0);
    throw InvalidArgument(concat("cannot run '", program.string(), "': ", std::strerror(error)));
  }

  void poll_once() {
    pollfd ready{.fd = signals_.fd(), .events = POLLIN, .revents = 0};
    const auto nap = seen_ ? poll_interval : first_poll_interval;
    poll(&ready, 1, static_cast<int>(nap.count()));
    while (const auto event = signals_.next()) handle(*event);
    const auto now = Clock::now();
    if (deadline_) {
      if (now >= *deadline_) escalate();
      return;
    }
    check_ranks(now);
  }

  void handle(const signalfd_siginfo& event) {
    const auto signal = static_cast<int>(event.ssi_signo);
    if (signal == SIGTSTP) {
      raise(SIGSTOP);
      return;
    }
    if (is_forwarded(signal)) kill(pid_, signal);  // mpirun forwards it to the ranks
    if (signal != SIGINT && signal != SIGTERM && signal != SIGHUP) return;
    // mpirun gets a signal of the terminal itself, because it is in the same process group.
    const bool of_terminal = event.ssi_code == SI_KERNEL;
    if (!of_terminal) kill(pid_, signal);
    if (std::exchange(signalled_, true)) deadline_ = Clock::now() + between_signals;
  }

  void check_ranks(Clock::time_point now) {
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
              << " s after the last rank of this host ended, and is ended now. Read the ranks' "
                 "output: the link to another host may have failed. Ranks without output may have "
                 "been ended by a signal."
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
  bool seen_ = false;  ///< a rank was found
  std::optional<Clock::time_point> since_;
  std::optional<Clock::time_point> deadline_;
  int signals_sent_ = 0;
  bool signalled_ = false;
  bool ended_by_us_ = false;
};

}  // namespace

int run_mpirun(const MpirunOptions& options) {
  if (!(options.linger.count() >= 0 && options.linger.count() <= 1e9)) {
    throw InvalidArgument(
        concat("linger: got ", options.linger.count(), " s, expected 0 or more and at most 1e9"));
  }
  open_standard_descriptors();
  const int code = Supervision(options).run();
  detail::remove_ended_flight_records();
  return code;
}

}  // namespace lockstep::launch
