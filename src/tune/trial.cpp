#include "tune/trial.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <iostream>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "comm/flight_record.h"
#include "core/plural.h"
#include "core/text.h"
#include "launch/launch.h"
#include "launch/system.h"

namespace lockstep::inline v0_2::tune {
namespace {

using detail::concat;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Steps keep the times of their ends, so this does not limit how exact a measurement is.
constexpr auto between_readings = std::chrono::milliseconds(100);

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

  /// Waits for a signal. Returns the one that asks this process to end, if any came.
  std::optional<siginfo_t> await(std::chrono::milliseconds time) const {
    const timespec limit{.tv_sec = time.count() / 1000, .tv_nsec = time.count() % 1000 * 1'000'000};
    siginfo_t info{};
    if (sigtimedwait(&set_, &info, &limit) < 0 || info.si_signo == SIGCHLD) return std::nullopt;
    return info;
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
  ~Job() {
    if (!ending_) {
      ::kill(pid_, SIGTERM);
      await_end();
    }
  }
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
    while (!ending_) {
      if (::waitpid(pid_, &status, 0) == pid_) {
        ending_ = status;
      } else if (errno != EINTR) {
        break;
      }
    }
  }

  /// The last lines of the output.
  std::string last_lines() const {
    constexpr off_t most_bytes = 4096;
    constexpr int most_lines = 6;
    const auto size = ::lseek(output_.get(), 0, SEEK_END);
    std::string text(static_cast<std::size_t>(std::clamp<off_t>(size, 0, most_bytes)), '\0');
    const auto got =
        ::pread(output_.get(), text.data(), text.size(), size - static_cast<off_t>(text.size()));
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    while (text.ends_with('\n')) text.pop_back();
    auto begin = text.size();
    for (int line = 0; line < most_lines && begin != std::string::npos && begin > 0; ++line) {
      begin = text.rfind('\n', begin - 1);
    }
    return begin == std::string::npos || text.empty() ? text : text.substr(begin + 1);
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

/// The steps of one rank.
struct Steps {
  struct Mark {
    std::uint64_t number = 0;
    double seconds = 0;  ///< since the rank joined
  };
  Mark first;
  std::optional<Mark> begin = {};  ///< of the measurement
  Mark last;

  std::uint64_t measured() const { return begin ? last.number - begin->number : 0; }
  double seconds() const { return begin ? last.seconds - begin->seconds : 0; }
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
      const Steps::Mark mark{.number = record->step(), .seconds = *seconds};
      auto& steps =
          steps_.try_emplace(record->rank(), Steps{.first = mark, .last = mark}).first->second;
      if (mark.number > steps.last.number) steps.last = mark;
    }
    const bool begun = all([](const Steps& steps) { return steps.begin.has_value(); });
    const bool warm = all([&](const Steps& steps) {
      return steps.last.number > steps.first.number &&
             steps.last.seconds - steps.first.seconds >= durations_.warm_up.count();
    });
    if (!begun && warm) {
      for (auto& [rank, steps] : steps_) steps.begin = steps.last;
    }
  }

  /// Whether the measurement is complete.
  bool complete() const {
    return all([&](const Steps& steps) {
      return steps.measured() > 0 && steps.seconds() >= durations_.measured.count();
    });
  }

  /// Steps of the rank that has made the fewest; 0 if a rank has made none.
  std::uint64_t fewest() const {
    std::uint64_t least = ~std::uint64_t{0};
    for (const auto& [rank, steps] : steps_) least = std::min(least, steps.last.number);
    return steps_.size() == ranks_ ? least : 0;
  }

  /// The result, of a shorter measurement too, if each rank has made a step in it.
  std::optional<Trial> result() const {
    if (!all([](const Steps& steps) { return steps.measured() > 0; })) return std::nullopt;
    Trial trial{.steps = ~std::uint64_t{0}};
    for (const auto& [rank, steps] : steps_) {
      const auto number = steps.measured();
      trial.steps = std::min(trial.steps, number);
      trial.step += steps.seconds() / static_cast<double>(number) / static_cast<double>(ranks_);
    }
    return trial;
  }

 private:
  bool all(auto&& holds) const {
    return steps_.size() == ranks_ &&
           std::ranges::all_of(steps_, [&](const auto& of_rank) { return holds(of_rank.second); });
  }

  std::string job_;
  std::size_t ranks_;
  Durations durations_;
  std::map<int, Steps> steps_;
};

std::string problem_of(const StepCounts& counts, const Job& job, std::optional<int> ending,
                       const Durations& durations) {
  if (ending && *ending != 0) return job.last_lines();
  const auto made = detail::plural(counts.fewest(), "step");
  if (ending) {
    return concat("the program ended after ", made,
                  ", expected more: let it train longer, or set --seconds and --warm-up lower");
  }
  return concat(
      "counted ", made, " in ", durations.limit.count(),
      " s, expected a program whose DistributedDataParallel or DistributedOptimizer makes "
      "steps: set --limit higher if it starts slowly");
}

}  // namespace

Trial run_trial(const launch::Plan& plan, const Durations& durations) {
  const Signals signals;
  Job job(plan);
  StepCounts counts(plan.run_id, plan.options.ranks, durations);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(durations.limit);
  std::optional<int> ending;
  while (!ending && !counts.complete() && Clock::now() < deadline) {
    if (const auto signal = signals.await(between_readings)) {
      // A terminal sends Ctrl-C to the launcher, too; a second signal would kill the ranks.
      if (signal->si_code == SI_KERNEL) {
        job.await_end();
      } else {
        job.end();
      }
      throw Interrupted(signal->si_signo);
    }
    counts.read();
    ending = job.ending();
  }
  job.end();
  const bool failed = ending && *ending != 0;
  if (const auto trial = counts.result(); trial && !failed) return *trial;
  return {.problem = problem_of(counts, job, ending, durations)};
}

}  // namespace lockstep::tune
