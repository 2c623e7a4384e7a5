// Runs worlds of several hosts in one thread, with a simulated clock and network. Each seed is a
// world, with at most one fault or with disturbances while it is joined, and the promises of
// Lockstep are checked at its end.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string_view>

#include "core/log.h"
#include "core/text.h"
#include "tests/simulation/simulated_job.h"
#include "tests/simulation/world_workers.h"

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
