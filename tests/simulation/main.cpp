// Runs worlds of several hosts in one thread, with a simulated clock and network. Each seed is a
// world, with at most one fault, and what Lockstep promises is checked at its end.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/log.h"
#include "core/text.h"
#include "tests/simulation/simulated_job.h"

namespace lockstep::inline v0_2 {

bool logs_are_printed = false;

/// The log of the shipped code: printed when a world is replayed.
void log::write(Level /*level*/, std::string_view text) {
  auto* kernel = testing::SimulatedKernel::current();
  if (!logs_are_printed || kernel == nullptr) return;
  std::printf(
      "%11.6f process %d: %.*s\n", static_cast<double>(kernel->scheduler().now().count()) * 1e-9,
      testing::SimulatedKernel::process().pid(), static_cast<int>(text.size()), text.data());
}

}  // namespace lockstep::inline v0_2

namespace lockstep::testing {
namespace {

using detail::concat;

/// A worker's processes leave memory of dead ranks behind, so a worker runs this many worlds only.
constexpr std::uint64_t worlds_per_worker = 250;
/// Of these many worlds, one runs twice, and both runs must have the same trace.
constexpr std::uint64_t repeated = 50;

struct Report {
  std::uint64_t seed = 0;  ///< the world that runs, or that failed
  std::uint64_t worlds = 0;
  std::uint64_t faulty = 0;
  std::uint64_t events = 0;
  std::array<char, 1000> violation{};
};

/// Runs worlds until one breaks a promise.
void run_worlds(std::uint64_t first, std::uint64_t count, int report_fd) {
  // Memory of operations is used again by the next world.
  ::mallopt(M_MMAP_THRESHOLD, 64 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  Report report;
  const auto send = [&] {
    [[maybe_unused]] const auto written = ::write(report_fd, &report, sizeof report);
  };
  for (report.seed = first; report.seed < first + count; ++report.seed) {
    send();
    const auto scenario = Scenario::make(report.seed);
    auto verdict = run_world(scenario);
    if (report.seed % repeated == 0 && run_world(scenario).trace != verdict.trace) {
      verdict.violation = "another trace in a second run";
    }
    ++report.worlds;
    report.faulty += verdict.faulty ? 1 : 0;
    report.events += verdict.events;
    if (verdict.violation.empty()) continue;
    verdict.violation.copy(report.violation.data(), report.violation.size() - 1);
    break;
  }
  send();
}

struct Worker {
  pid_t pid;
  int fd;
  std::uint64_t last;  ///< the seed after its last
  Report report = {};
  std::uint64_t end = 0;
};

class Workers {
 public:
  Workers(std::uint64_t first, std::uint64_t count, int jobs)
      : next_(first), end_(first + count), jobs_(jobs) {}

  /// The number of worlds that broke a promise.
  std::uint64_t run(std::uint64_t most_failures) {
    while (next_ < end_ || !workers_.empty()) {
      while (next_ < end_ && static_cast<int>(workers_.size()) < jobs_)
        start(next_, std::min(next_ + worlds_per_worker, end_));
      collect();
      if (failures_ >= most_failures) next_ = end_;
    }
    return failures_;
  }

  Report total;

 private:
  void start(std::uint64_t first, std::uint64_t last) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("cannot create a pipe");
    std::cout.flush();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      run_worlds(first, last - first, ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    workers_.push_back({.pid = pid, .fd = ends[0], .last = last});
    next_ = std::max(next_, last);
  }

  /// Waits for the first worker, and continues after a world that failed.
  void collect() {
    auto worker = workers_.front();
    workers_.erase(workers_.begin());
    Report report;
    while (::read(worker.fd, &report, sizeof report) == static_cast<ssize_t>(sizeof report)) {
      worker.report = report;
    }
    ::close(worker.fd);
    int status = 0;
    ::waitpid(worker.pid, &status, 0);
    total.worlds += worker.report.worlds;
    total.faulty += worker.report.faulty;
    total.events += worker.report.events;
    std::string violation = text_of(worker.report);
    if (status != 0) {
      violation = WIFSIGNALED(status) ? concat("ended by signal ", WTERMSIG(status))
                                      : concat("exit code ", WEXITSTATUS(status));
    }
    if (violation.empty()) return;
    ++failures_;
    std::cout << "seed " << worker.report.seed << ": " << violation << "\n  "
              << Scenario::make(worker.report.seed).text()
              << "\n  replay: simulated_worlds --replay " << worker.report.seed << std::endl;
    if (worker.report.seed + 1 < worker.last && next_ < end_ + 1)
      start(worker.report.seed + 1, worker.last);
  }

  static std::string text_of(const Report& report) { return report.violation.data(); }

  std::uint64_t next_;
  std::uint64_t end_;
  int jobs_;
  std::vector<Worker> workers_;
  std::uint64_t failures_ = 0;
};

int replay(std::uint64_t seed, bool verbose) {
  const auto scenario = Scenario::make(seed);
  std::cout << scenario.text() << std::endl;
  logs_are_printed = verbose;
  const auto verdict = run_world(scenario, verbose);
  std::fflush(stdout);
  std::cout << (verdict.faulty ? "the fault happened; " : "the fault did not happen; ")
            << verdict.events << " events, trace " << std::hex << verdict.trace << std::dec << ": "
            << (verdict.violation.empty() ? "every promise is kept" : verdict.violation)
            << std::endl;
  return verdict.violation.empty() ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;  // NOLINT
  std::uint64_t worlds = 1000, seed = 1, most = 10;
  std::optional<std::uint64_t> replayed;
  int jobs = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  bool verbose = false;
  CLI::App app("Runs simulated worlds and checks what Lockstep promises");
  app.add_option("--worlds", worlds, "number of worlds (default: 1000)");
  app.add_option("--seed", seed, "seed of the first world; the next ones follow (default: 1)");
  app.add_option("--jobs", jobs, "processes that run worlds (default: number of cores)");
  app.add_option("--most-failures", most, "stop after this many failures (default: 10)");
  app.add_option("--replay", replayed, "run the world of this seed only");
  app.add_flag("--verbose", verbose, "with --replay: print the log and all events");
  CLI11_PARSE(app, argc, argv);
  if (replayed) return replay(*replayed, verbose);
  const auto begin = std::chrono::steady_clock::now();
  Workers workers(seed, worlds, jobs);
  const auto failures = workers.run(most);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%llu worlds in %.1f s, %llu with a fault, %llu events: %llu broke a promise\n",
              static_cast<unsigned long long>(workers.total.worlds), took.count(),
              static_cast<unsigned long long>(workers.total.faulty),
              static_cast<unsigned long long>(workers.total.events),
              static_cast<unsigned long long>(failures));
  return failures == 0 ? 0 : 1;
}
