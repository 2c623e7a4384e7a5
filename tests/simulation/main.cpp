// Runs worlds of several hosts in one thread, with a simulated clock and network. Each seed is a
// world, with at most one fault or with disturbances while it is joined, and the promises of
// Lockstep are checked at its end.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <iostream>
#include <new>
#include <system_error>
#include <thread>

#include "core/log.h"
#include "core/text.h"
#include "tests/simulation/attempt.h"

namespace {

bool log_is_printed = false;

}  // namespace

namespace lockstep::inline v0_2::log {

/// The log of the shipped code, in place of the definition in src/core. A replay prints it.
void write(LogLevel /*level*/, std::string_view text) {
  auto* kernel = testing::SimulatedKernel::current();
  if (!log_is_printed || kernel == nullptr) return;
  std::printf(
      "%11.6f process %d: %.*s\n", static_cast<double>(kernel->scheduler().now().count()) * 1e-9,
      testing::SimulatedKernel::process().pid(), static_cast<int>(text.size()), text.data());
}

void notice(std::string_view text) {
  write(LogLevel::warn, text);
  const auto line = detail::concat("lockstep: ", text, '\n');
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace lockstep::inline v0_2::log

namespace {

using namespace lockstep::testing;  // NOLINT

using lockstep::detail::concat;

constexpr std::uint64_t worlds_per_worker = 250;
/// Of so many worlds, one runs twice, and both runs must have the same trace.
constexpr std::uint64_t repeated = 50;

/// The worlds that have run.
struct Counts {
  std::uint64_t worlds = 0;
  std::uint64_t faulty = 0;
  std::uint64_t events = 0;
  std::uint64_t failures = 0;
};

/// The worlds of one process. In memory that it shares with its parent.
struct Report {
  std::uint64_t seed;  ///< the world that runs, or that broke a promise
  std::uint64_t last;  ///< the seed after its last
  Counts counts = {};
  std::array<char, 1000> violation{};
};

/// Runs worlds until one breaks a promise.
void run(Report& report, bool joining) {
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
pid_t start(Report& report, bool joining) {
  std::cout.flush();
  const pid_t pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid > 0) return pid;
  run(report, joining);
  ::_exit(0);
}

/// Describes the violation in the report's world; empty for none. status: of its process.
std::string violation_of(const Report& report, int status) {
  if (WIFSIGNALED(status)) return concat("the world ended by signal ", WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) return "the world ended the process";
  return report.violation.data();
}

/// Runs worlds in a process for each core, each some of the seeds, until too many have broken a
/// promise. Prints those. A process that ends returns the memory of dead ranks, and reports the
/// seed of a world that crashes.
Counts run_worlds(std::uint64_t first, std::uint64_t count, bool joining,
                  std::uint64_t most_failures) {
  const std::size_t jobs = std::max(1U, std::thread::hardware_concurrency());
  Counts total;
  std::map<pid_t, Report*> workers;
  const auto begin = [&](std::uint64_t seed, std::uint64_t last) {
    auto* memory =
        ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    auto* report = new (memory) Report{.seed = seed, .last = last};
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
    const Report report = *ended.mapped();
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

int replay(std::uint64_t seed, bool joining, bool verbose) {
  const auto scenario = Scenario::make(seed, joining);
  std::cout << scenario.text() << std::endl;
  log_is_printed = verbose;
  const auto verdict = run_world(scenario, verbose);
  std::fflush(stdout);
  std::cout << (verdict.faulty ? "the fault happened; " : "the fault did not happen; ")
            << verdict.events << " events, trace " << std::hex << verdict.trace << std::dec << ": "
            << (verdict.violation.empty() ? "every promise is kept" : verdict.violation)
            << std::endl;
  return verdict.violation.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t worlds = 1000, seed = 1, most = 10;
  std::optional<std::uint64_t> replayed;
  bool joining = false, verbose = false;
  CLI::App app("Runs simulated worlds and checks the promises of Lockstep");
  app.add_option("--worlds", worlds, "number of worlds (default: 1000)");
  app.add_option("--seed", seed, "seed of the first world; the next ones follow (default: 1)");
  app.add_option("--most-failures", most, "stop after so many failures (default: 10)")
      ->check(CLI::Range(1, 1'000));
  app.add_flag("--joining", joining,
               "disturb ranks while they join: stops, cut links, late packets and resets");
  app.add_option("--replay", replayed, "run the world of this seed only");
  app.add_flag("--verbose", verbose, "with --replay: print the log and all events");
  CLI11_PARSE(app, argc, argv);
  if (replayed) return replay(*replayed, joining, verbose);
  const auto begin = std::chrono::steady_clock::now();
  const auto total = run_worlds(seed, worlds, joining, most);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::cout << total.worlds << " worlds in " << lockstep::detail::fixed(took.count(), 1) << " s, "
            << total.faulty << " with a fault, " << total.events << " events: " << total.failures
            << " broke a promise\n";
  return total.failures == 0 ? 0 : 1;
}
