// Runs random programs on Lockstep and compares them with the oracle; replays and shrinks one.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/device/simulation/simulation.h"
#include "tests/random_programs/run.h"

namespace {

using namespace lockstep::random_programs;

struct Arguments {
  std::uint64_t seed = 1;
  int programs = 300;
  std::string replay;
  std::string ranks = "both";
  std::string device;
  std::string rank_of;
  std::string folder;

  bool on_device() const { return !device.empty(); }
};

void add_options(CLI::App& app, Arguments& arguments) {
  app.add_option("--programs", arguments.programs, "Number of programs")->capture_default_str();
  app.add_option("--seed", arguments.seed, "Seed of the first; each next one is larger by 1")
      ->capture_default_str();
  app.add_option(
      "--replay", arguments.replay,
      "Print and run one program, as SEED or SEED:OPERATIONS, and shrink it if it fails");
  app.add_option("--ranks", arguments.ranks,
                 "threads, processes, or both: programs of odd seeds run on processes")
      ->check(CLI::IsMember({"threads", "processes", "both"}))
      ->capture_default_str();
  app.add_option("--device", arguments.device,
                 "The simulated device, sim-staged or sim-nccl: through host memory, or over the "
                 "double of NCCL")
      ->check(CLI::IsMember({"sim-staged", "sim-nccl"}));
  app.add_option("--rank-of", arguments.rank_of, "Programs that this process is a rank of")
      ->group("");
  app.add_option("--folder", arguments.folder, "Where a rank process leaves its log")->group("");
}

bool on_processes(const Arguments& arguments, std::uint64_t seed) {
  return arguments.ranks == "processes" || (arguments.ranks == "both" && seed % 2 == 1);
}

/// The options of rank processes.
std::string options_of(const Arguments& arguments) {
  return arguments.on_device() ? " --device " + arguments.device : "";
}

Ranks ranks_of(const Arguments& arguments) {
  std::optional<at::DeviceType> device;
#ifdef LOCKSTEP_NCCL_DOUBLE
  if (arguments.on_device()) device = lockstep::simulation::device_type();
#endif
  return {.options = options_of(arguments), .device = device};
}

std::string command_of(const Arguments& arguments, const Source& source) {
  return "random_programs --replay " + to_text(source) +
         (source.on_processes ? " --ranks processes" : " --ranks threads") + options_of(arguments);
}

int replay(const Arguments& arguments) {
  auto source = parse_sources(arguments.replay, arguments.on_device()).at(0);
  source.on_processes = on_processes(arguments, source.seed);
  std::cout << to_text(program_of(source)) << std::flush;
  std::string what;
  const auto fails = [&](const Source& some) {
    return run_all({some}, ranks_of(arguments),
                   [&](const Failure& failure) { what = failure.what; }) != 0;
  };
  if (!fails(source)) {
    std::cout << "as expected\n";
    return 0;
  }
  std::cout << "fails: " << what << std::endl;
  const auto smallest = shrink(source, fails);
  std::cout << "\nsmallest: " << to_text(program_of(smallest)) << "fails: " << what << '\n'
            << command_of(arguments, smallest) << '\n';
  return 1;
}

int search(const Arguments& arguments) {
  std::vector<Source> sources;
  for (int i = 0; i < arguments.programs; ++i) {
    const auto seed = arguments.seed + static_cast<std::uint64_t>(i);
    sources.push_back({.seed = seed,
                       .on_device = arguments.on_device(),
                       .on_processes = on_processes(arguments, seed)});
  }
  const auto failed = run_all(sources, ranks_of(arguments), [&](const Failure& failure) {
    std::cout << "program " << failure.number << ": " << command_of(arguments, failure.source)
              << ": " << failure.what << std::endl;
  });
  std::cout << arguments.programs << " programs from seed " << arguments.seed << ": " << failed
            << (failed >= most_failures ? " or more" : "") << " failed\n";
  return failed == 0 ? 0 : 1;
}

}  // namespace

/// Prints the accesses to simulated devices that no event orders. Returns whether there are none.
bool streams_are_ordered() {
#ifdef LOCKSTEP_NCCL_DOUBLE
  const auto races = lockstep::simulation::take_races();
  for (const auto& race : races) std::cout << race << '\n';
  return races.empty();
#else
  return true;
#endif
}

/// Gives this process, and the processes that it starts, simulated devices.
void use_device(const std::string& device) {
  if (!device.empty()) {
    ::setenv("LOCKSTEP_DEVICE_BACKEND", device == "sim-nccl" ? "nccl" : "staged", 1);
#ifdef LOCKSTEP_NCCL_DOUBLE
    ::setenv("LOCKSTEP_DEVICE", lockstep::simulation::type_name(), 1);
    ::setenv("LOCKSTEP_NCCL", LOCKSTEP_NCCL_DOUBLE, 1);
#endif
  }
#ifdef LOCKSTEP_NCCL_DOUBLE
  const char* const chosen = std::getenv("LOCKSTEP_DEVICE");
  if (chosen != nullptr && std::string_view(chosen) == lockstep::simulation::type_name())
    lockstep::simulation::install();
#endif
}

int main(int argc, char** argv) {
  CLI::App app("Runs random training programs on Lockstep and on one process, and compares them.");
  Arguments arguments;
  add_options(app, arguments);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  use_device(arguments.device);
  try {
    if (!arguments.rank_of.empty()) {
      run_as_rank(parse_sources(arguments.rank_of, arguments.on_device()), arguments.folder);
      return 0;
    }
    const int code = arguments.replay.empty() ? search(arguments) : replay(arguments);
    return streams_are_ordered() ? code : 1;
  } catch (const std::exception& error) {
    std::cerr << "random_programs: " << error.what() << '\n';
    return 2;
  }
}
