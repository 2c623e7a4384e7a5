#include "tests/simulation/world_workers.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iostream>
#include <map>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "core/text.h"
#include "tests/simulation/simulated_job.h"

namespace lockstep::testing {
namespace {

using detail::concat;

constexpr std::uint64_t worlds_per_worker = 250;
/// Of so many worlds, one runs twice, and both runs must have the same trace.
constexpr std::uint64_t repeated = 50;

/// The worlds of one process. In memory that it shares with its parent.
struct WorkerReport {
  std::uint64_t seed;  ///< the world that runs, or that broke a promise
  std::uint64_t last;  ///< the seed after its last
  WorldCounts counts = {};
  std::array<char, 1000> violation{};
};

/// Runs worlds until one breaks a promise.
void run(WorkerReport& report, bool joining) {
  // Memory of operations is used again by the next world.
  ::mallopt(M_MMAP_THRESHOLD, 64 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  for (; report.seed < report.last; ++report.seed) {
    const auto scenario = Scenario::make(report.seed, joining);
    auto verdict = run_world(scenario);
    if (report.seed % repeated == 0 && run_world(scenario).trace != verdict.trace) {
      verdict.violation = "another trace in a second run";
    }
    ++report.counts.worlds;
    report.counts.faulty += verdict.faulty ? 1 : 0;
    report.counts.events += verdict.events;
    if (verdict.violation.empty()) continue;
    verdict.violation.copy(report.violation.data(), report.violation.size() - 1);
    return;
  }
}

/// Forks a process that runs the worlds of the report.
pid_t start(WorkerReport& report, bool joining) {
  std::cout.flush();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) {
    run(report, joining);
    ::_exit(0);
  }
  return pid;
}

/// What is wrong with the world of the report, after its process has ended with this status.
std::string violation_of(const WorkerReport& report, int status) {
  if (WIFSIGNALED(status)) return concat("the world ended by signal ", WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) return "the world ended the process";
  return report.violation.data();
}

}  // namespace

WorldCounts run_worlds(std::uint64_t first, std::uint64_t count, bool joining,
                       std::uint64_t most_failures) {
  const std::size_t jobs = std::max(1U, std::thread::hardware_concurrency());
  WorldCounts total;
  std::map<pid_t, WorkerReport*> workers;
  const auto begin = [&](std::uint64_t seed, std::uint64_t last) {
    auto* memory = ::mmap(nullptr, sizeof(WorkerReport), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    auto* report = new (memory) WorkerReport{.seed = seed, .last = last};
    workers[start(*report, joining)] = report;
  };
  const auto end = first + count;
  auto next = first;
  while (next < end || !workers.empty()) {
    while (next < end && workers.size() < jobs) {
      const auto seed = next;
      next = std::min(next + worlds_per_worker, end);
      begin(seed, next);
    }
    int status = 0;
    const auto ended = workers.extract(::waitpid(-1, &status, 0));
    if (ended.empty()) continue;
    const WorkerReport report = *ended.mapped();
    ::munmap(ended.mapped(), sizeof report);
    total.worlds += report.counts.worlds;
    total.faulty += report.counts.faulty;
    total.events += report.counts.events;
    const auto violation = violation_of(report, status);
    if (violation.empty()) continue;
    ++total.failures;
    std::cout << "seed " << report.seed << ": " << violation << "\n  "
              << Scenario::make(report.seed, joining).text() << "\n  replay: simulated_worlds "
              << (joining ? "--joining " : "") << "--replay " << report.seed << std::endl;
    if (total.failures >= most_failures) {
      next = end;
    } else if (report.seed + 1 < report.last) {
      begin(report.seed + 1, report.last);
    }
  }
  return total;
}

}  // namespace lockstep::testing
