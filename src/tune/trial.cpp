#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <utility>

#include "comm/flight/flight_record.h"
#include "core/text.h"
#include "launch/job/output.h"
#include "launch/launch.h"
#include "launch/system.h"
#include "tune/tuning.h"

namespace lockstep::inline v0_2::tune {
namespace {

using detail::concat;
using Clock = std::chrono::steady_clock;

/// Steps keep the times of their ends, so this does not limit how exact a measurement is.
constexpr timespec between_readings{.tv_sec = 0, .tv_nsec = 100'000'000};

/// The signals that end a trial, and SIGCHLD. Blocked in its scope, so that await() returns them.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set_, signal);
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~Signals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// Waits for a signal until the next reading. Returns the one that asks this process to end, if
  /// any came.
  std::optional<siginfo_t> await() const {
    siginfo_t info{};
    const bool came = sigtimedwait(&set_, &info, &between_readings) >= 0;
    return came && info.si_signo != SIGCHLD ? std::optional(info) : std::nullopt;
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

/// A launcher in a child process, whose output is in memory.
class Job {
 public:
  explicit Job(const launch::Plan& plan) : output_(::memfd_create("lockstep tune", MFD_CLOEXEC)) {
    if (!output_) launch::throw_system("keep the output of a run");
    std::cout.flush();
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) launch::throw_system("start a launcher");
    if (pid_ == 0) run(plan, parent);
  }
  ~Job() { end(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Its wait status; empty while it runs.
  std::optional<int> ending() {
    int status = 0;
    if (!ending_ && ::waitpid(pid_, &status, WNOHANG) == pid_) ending_ = status;
    return ending_;
  }
  void end() {
    if (!ending()) ::kill(pid_, SIGTERM);
    await_end();
  }
  void await_end() {
    int status = 0;
    if (!ending_ && TEMP_FAILURE_RETRY(::waitpid(pid_, &status, 0)) == pid_) ending_ = status;
  }

  /// The last lines of the output.
  std::string last_lines() const {
    std::ifstream output(concat("/proc/self/fd/", output_.get()));
    launch::Tail tail;
    for (std::string line; std::getline(output, line);) tail.add(line + '\n');
    return detail::joined(tail.lines(6), "\n");
  }

 private:
  [[noreturn]] void run(const launch::Plan& plan, pid_t parent) const {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (::getppid() != parent || ::dup2(null, 0) < 0 || ::dup2(output_.get(), 1) < 0 ||
        ::dup2(output_.get(), 2) < 0) {
      ::_exit(1);
    }
    int code = 1;
    try {
      code = launch::run(plan);
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
    }
    ::_exit(code);
  }

  detail::Descriptor output_;
  pid_t pid_ = -1;
  std::optional<int> ending_;
};

/// The end of a step of one rank.
struct Mark {
  std::uint64_t number = 0;
  double seconds = 0;  ///< since the rank joined
};

/// The steps of one rank since the begin of the warm-up, or of the measurement.
struct Steps {
  Mark begin;
  Mark last;

  std::uint64_t measured() const { return last.number - begin.number; }
  double seconds() const { return last.seconds - begin.seconds; }
};

/// The steps of all ranks of a job.
class StepCounts {
 public:
  StepCounts(std::string job, int ranks, const Durations& durations)
      : job_(std::move(job)), ranks_(static_cast<std::size_t>(ranks)), durations_(durations) {}

  void read() {
    for (const auto& record : detail::read_flight_records(job_)) {
      const auto seconds = record->last_step();
      if (static_cast<std::size_t>(record->size()) != ranks_ || !seconds) continue;
      const Mark mark{.number = record->step(), .seconds = *seconds};
      auto& steps = steps_.try_emplace(record->rank(), Steps{mark, mark}).first->second;
      if (mark.number > steps.last.number) steps.last = mark;
    }
    if (begun_ || !all_measured(durations_.warm_up)) return;
    begun_ = true;
    for (auto& [rank, steps] : steps_) steps.begin = steps.last;
  }

  /// Whether the measurement is complete.
  bool complete() const { return begun_ && all_measured(durations_.measured); }

  /// Steps of the rank that has made the fewest; 0 if a rank has made none.
  std::uint64_t fewest() const {
    std::uint64_t least = ~std::uint64_t{0};
    for (const auto& [rank, steps] : steps_) least = std::min(least, steps.last.number);
    return steps_.size() == ranks_ ? least : 0;
  }

  /// The result, of a shorter measurement too, if each rank has made a step in it.
  std::optional<Trial> result() const {
    if (!begun_ || !all_measured(0)) return std::nullopt;
    Trial trial{.steps = ~std::uint64_t{0}};
    for (const auto& [rank, steps] : steps_) {
      const auto number = steps.measured();
      trial.steps = std::min(trial.steps, number);
      trial.step += steps.seconds() / static_cast<double>(number) / static_cast<double>(ranks_);
    }
    return trial;
  }

 private:
  /// Whether each rank has made a step since its begin, and that long ago.
  bool all_measured(double seconds) const {
    return steps_.size() == ranks_ && std::ranges::all_of(steps_, [&](const auto& of_rank) {
             const Steps& steps = of_rank.second;
             return steps.measured() > 0 && steps.seconds() >= seconds;
           });
  }

  std::string job_;
  std::size_t ranks_;
  Durations durations_;
  std::map<int, Steps> steps_;
  bool begun_ = false;
};

}  // namespace

Trial run_trial(const launch::Plan& plan, const Durations& durations) {
  const Signals signals;
  Job job(plan);
  StepCounts counts(plan.run_id, plan.options.ranks, durations);
  const auto deadline = std::chrono::duration<double>(durations.limit) + Clock::now();
  std::optional<int> ending;
  while (!ending && !counts.complete() && Clock::now() < deadline) {
    if (const auto signal = signals.await()) {
      // A terminal sends Ctrl-C to the launcher, too; a second signal would kill the ranks.
      if (signal->si_code != SI_KERNEL) job.end();
      job.await_end();
      throw Interrupted(signal->si_signo);
    }
    counts.read();
    ending = job.ending();
  }
  job.end();
  if (ending && *ending != 0) return {.problem = job.last_lines()};
  if (const auto trial = counts.result()) return *trial;
  const auto made = detail::plural(counts.fewest(), "step");
  if (ending) {
    return {.problem = concat("the program ended after ", made,
                              ", expected more: let it train "
                              "longer, or set --seconds and --warm-up lower")};
  }
  return {.problem = concat(
              "counted ", made, " in ", durations.limit,
              " s, expected a program whose DistributedDataParallel or DistributedOptimizer makes "
              "steps: set --limit higher if it starts slowly")};
}

}  // namespace lockstep::tune
