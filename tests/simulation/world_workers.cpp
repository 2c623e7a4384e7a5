#include "tests/simulation/world_workers.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <new>
#include <string>
#include <system_error>

#include "core/text.h"
#include "tests/simulation/simulated_job.h"

namespace lockstep::testing {
namespace {

using detail::concat;

constexpr std::uint64_t worlds_per_worker = 250;
/// Of so many worlds, one runs twice, and both runs must have the same trace.
constexpr std::uint64_t repeated = 50;

/// Runs worlds until one breaks a promise.
void run_worlds(std::uint64_t first, std::uint64_t last, bool joining, WorkerReport& report) {
  // Memory of operations is used again by the next world.
  ::mallopt(M_MMAP_THRESHOLD, 64 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  for (report.seed = first; report.seed < last; ++report.seed) {
    const auto scenario = Scenario::make(report.seed, joining);
    auto verdict = run_world(scenario);
    if (report.seed % repeated == 0 && run_world(scenario).trace != verdict.trace) {
      verdict.violation = "another trace in a second run";
    }
    ++report.worlds;
    report.faulty += verdict.faulty ? 1 : 0;
    report.events += verdict.events;
    if (verdict.violation.empty()) continue;
    verdict.violation.copy(report.violation.data(), report.violation.size() - 1);
    return;
  }
}

}  // namespace

std::uint64_t WorldWorkers::run() {
  while (next_ < end_ || !workers_.empty()) {
    while (next_ < end_ && static_cast<int>(workers_.size()) < jobs_) {
      const auto first = next_;
      next_ = std::min(next_ + worlds_per_worker, end_);
      start(first, next_);
    }
    collect();
    if (failures_ >= most_failures_) next_ = end_;
  }
  return failures_;
}

void WorldWorkers::start(std::uint64_t first, std::uint64_t last) {
  auto* memory = ::mmap(nullptr, sizeof(WorkerReport), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  auto* report = new (memory) WorkerReport;
  std::cout.flush();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) {
    run_worlds(first, last, joining_, *report);
    ::_exit(0);
  }
  workers_.push_back({.pid = pid, .report = report, .last = last});
}

/// Waits for the end of a worker. If a world of it failed, another worker runs the next ones.
void WorldWorkers::collect() {
  int status = 0;
  const pid_t pid = ::waitpid(-1, &status, 0);
  const auto found = std::ranges::find(workers_, pid, &Worker::pid);
  if (found == workers_.end()) return;
  const auto [ended, memory, last] = *found;
  workers_.erase(found);
  const WorkerReport report = *memory;
  ::munmap(memory, sizeof report);
  total.worlds += report.worlds;
  total.faulty += report.faulty;
  total.events += report.events;
  std::string violation = report.violation.data();
  if (WIFSIGNALED(status)) violation = concat("the world ended by signal ", WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) violation = "the world ended the process";
  if (violation.empty()) return;
  ++failures_;
  std::cout << "seed " << report.seed << ": " << violation << "\n  "
            << Scenario::make(report.seed, joining_).text() << "\n  replay: simulated_worlds "
            << (joining_ ? "--joining " : "") << "--replay " << report.seed << std::endl;
  if (report.seed + 1 < last && failures_ < most_failures_) start(report.seed + 1, last);
}

}  // namespace lockstep::testing
