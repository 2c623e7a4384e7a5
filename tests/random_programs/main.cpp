// Runs random programs on Lockstep and compares them with the oracle; replays and shrinks one.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text.h"
#include "lockstep/init.h"
#include "tests/device/simulation/simulation.h"
#include "tests/random_programs/outcome.h"
#include "tests/random_programs/rules.h"
#include "tests/temporary_folder.h"

namespace {

using namespace lockstep::random_programs;
using lockstep::detail::concat;
using lockstep::detail::joined;
using lockstep::detail::lines_in;
using lockstep::detail::quoted;

/// Longest wait for another rank.
constexpr std::chrono::seconds longest_wait(20);
/// How many programs one world runs at most: a failure repeats those that came after it.
constexpr std::size_t programs_of_a_world = 50;
/// How many failing programs end a search.
constexpr std::size_t most_failures = 5;

struct Arguments {
  std::uint64_t seed = 1;
  int programs = 300;
  std::string replay;
  std::string ranks = "both";
  std::string device;
  std::string rank_of;
  std::string folder;

  bool on_device() const { return !device.empty(); }
  bool on_processes(std::uint64_t of) const {
    return ranks == "processes" || (ranks == "both" && of % 2 == 1);
  }
  /// Those of rank processes.
  std::string options() const { return on_device() ? " --device " + device : ""; }
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

/// A program that is generated from its seed, whole or some of its operations.
struct Source {
  std::uint64_t seed;
  bool on_device = false;      ///< as Program::on_device
  bool on_processes = false;   ///< its ranks are started by `lockstep run`, rather than threads
  std::vector<int> kept = {};  ///< numbers of operations; empty for all
};

/// Throws: std::invalid_argument when an operation is kept that the program does not have.
Program program_of(const Source& source) {
  auto program = generate(source.seed, source.on_device);
  if (source.kept.empty()) return program;
  std::vector<Operation> operations;
  for (const int number : source.kept) {
    operations.push_back(program.operations.at(static_cast<std::size_t>(number)));
  }
  program.operations = std::move(operations);
  return program;
}

/// "17" or "17:0,1,5", and a list of such with spaces between.
std::string to_text(const Source& source) {
  return concat(source.seed, source.kept.empty() ? "" : ":", joined(source.kept, ","));
}

std::vector<Source> parse_sources(const std::string& text, bool on_device) {
  std::vector<Source> sources;
  for (const auto& word : lines_in(text, ' ')) {
    sources.push_back({.seed = std::stoull(word), .on_device = on_device});
    const auto colon = word.find(':');
    if (colon == std::string::npos) continue;
    for (const auto& number : lines_in(word.substr(colon + 1), ',')) {
      sources.back().kept.push_back(std::stoi(number));
    }
  }
  return sources;
}

/// Of the ranks; default: as init() chooses.
std::optional<at::DeviceType> device_of([[maybe_unused]] const Arguments& arguments) {
#ifdef LOCKSTEP_NCCL_DOUBLE
  if (arguments.on_device()) return lockstep::simulation::device_type();
#endif
  return std::nullopt;
}

/// An error of a world ends it: no further program can run.
bool ends_world(const Log& log) {
  if (log.empty()) return false;
  const auto& error = log.back().error;
  return !error.empty() && error != "invalid_argument" && error != "checkpoint";
}

std::vector<std::vector<Log>> run_on_threads(const std::vector<Program>& programs,
                                             const Arguments& arguments) {
  const lockstep::testing::TemporaryFolder folder;
  std::vector<std::vector<Log>> logs(static_cast<std::size_t>(programs[0].ranks));
  lockstep::spawn(programs[0].ranks,
                  [&](const lockstep::Group& world) {
                    at::set_num_threads(1);
                    auto& mine = logs[static_cast<std::size_t>(world.rank())];
                    for (const auto& program : programs) {
                      mine.push_back(interpret(program, world, folder.path()));
                      if (ends_world(mine.back())) return;
                    }
                  },
                  {.device = device_of(arguments), .timeout = longest_wait});
  return logs;
}

std::vector<std::vector<Log>> run_on_processes(const std::vector<Source>& sources, int ranks,
                                               const Arguments& arguments) {
  const lockstep::testing::TemporaryFolder folder;
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto list = joined(sources, " ", [](const Source& source) { return to_text(source); });
  const auto command =
      concat(quoted(program.parent_path() / "lockstep"), " run -n ", ranks, " --timeout ",
             longest_wait.count(), ' ', quoted(program), " --rank-of ", quoted(list), " --folder ",
             quoted(folder.path()), arguments.options(), " </dev/null");
  // Ranks that end without a log have failed.
  [[maybe_unused]] const int status = std::system(command.c_str());
  std::vector<std::vector<Log>> logs;
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream in(folder / concat("rank", rank), std::ios::binary);
    auto& mine = logs.emplace_back();
    while (mine.size() < sources.size()) {
      auto log = read_log(in);
      if (!log) break;
      mine.push_back(std::move(*log));
    }
  }
  return logs;
}

/// Runs programs on ranks of one kind and number one after the other in one world, as long as it
/// lasts. Returns each rank's logs, of all programs to which it has come.
std::vector<std::vector<Log>> run_in_one_world(const std::vector<Source>& sources,
                                               const Arguments& arguments) {
  std::vector<Program> programs;
  for (const auto& source : sources) programs.push_back(program_of(source));
  return sources[0].on_processes ? run_on_processes(sources, programs[0].ranks, arguments)
                                 : run_on_threads(programs, arguments);
}

/// The i-th program of each rank's logs.
std::vector<Log> logs_of(const std::vector<std::vector<Log>>& ranks, std::size_t i) {
  std::vector<Log> logs;
  for (const auto& rank : ranks) logs.push_back(i < rank.size() ? rank[i] : Log());
  return logs;
}

/// Whether every rank's world was still there after the i-th program.
bool goes_on(const std::vector<std::vector<Log>>& ranks, std::size_t i) {
  return std::ranges::all_of(ranks, [i](const auto& rank) { return i + 1 < rank.size(); });
}

/// Called with a failing program, the difference, and the number of programs compared so far.
using Tell = std::function<void(const Source&, const std::string& what, std::size_t number)>;

/// Runs programs, each on as many ranks as it asks for; those of the same number of ranks share
/// worlds. Tells of each that fails as soon as it has, and ends after most_failures. Returns how
/// many.
std::size_t run_all(const std::vector<Source>& sources, const Arguments& arguments,
                    const Tell& tell) {
  std::map<std::pair<bool, int>, std::vector<Source>> by_ranks;
  for (const auto& source : sources) {
    by_ranks[{source.on_processes, program_of(source).ranks}].push_back(source);
  }
  std::size_t failures = 0;
  std::size_t compared = 0;
  for (const auto& [kind, all] : by_ranks) {
    for (std::size_t next = 0; next < all.size() && failures < most_failures;) {
      const auto last = std::min(next + programs_of_a_world, all.size());
      const std::vector<Source> batch(all.begin() + static_cast<std::ptrdiff_t>(next),
                                      all.begin() + static_cast<std::ptrdiff_t>(last));
      const auto logs = run_in_one_world(batch, arguments);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        ++next;
        ++compared;
        const auto found = difference(expect(program_of(batch[i])), logs_of(logs, i));
        if (found) {
          ++failures;
          tell(batch[i], *found, compared);
        }
        // Results after a failure in the same world are meaningless.
        if (found || !goes_on(logs, i)) break;
      }
    }
  }
  return failures;
}

/// The failing program without the operations that it fails without: any other that is left out
/// makes it illegal, or right.
Source shrink(const Source& failing, const std::function<bool(const Source&)>& fails) {
  auto smallest = failing;
  if (smallest.kept.empty()) {
    smallest.kept.resize(program_of(failing).operations.size());
    std::iota(smallest.kept.begin(), smallest.kept.end(), 0);
  }
  for (bool shrunk = true; shrunk;) {
    shrunk = false;
    for (std::size_t i = smallest.kept.size(); i-- > 0 && smallest.kept.size() > 1;) {
      auto smaller = smallest;
      smaller.kept.erase(smaller.kept.begin() + static_cast<std::ptrdiff_t>(i));
      if (!is_legal(program_of(smaller)) || !fails(smaller)) continue;
      smallest = std::move(smaller);
      shrunk = true;
    }
  }
  return smallest;
}

/// The body of a process that run_all() has started.
void run_as_rank(const std::vector<Source>& sources, const std::filesystem::path& folder) {
  const auto world = lockstep::init();
  at::set_num_threads(1);
  std::ofstream out(folder / concat("rank", world.rank()), std::ios::binary);
  for (const auto& source : sources) {
    const auto log = interpret(program_of(source), world, folder);
    write(out, log);
    out.flush();
    if (ends_world(log)) return;
  }
}

std::string command_of(const Arguments& arguments, const Source& source) {
  return "random_programs --replay " + to_text(source) +
         (source.on_processes ? " --ranks processes" : " --ranks threads") + arguments.options();
}

int replay(const Arguments& arguments) {
  auto source = parse_sources(arguments.replay, arguments.on_device()).at(0);
  source.on_processes = arguments.on_processes(source.seed);
  std::cout << to_text(program_of(source)) << std::flush;
  std::string what;
  const auto fails = [&](const Source& some) {
    return run_all({some}, arguments, [&](const Source&, const std::string& found, std::size_t) {
             what = found;
           }) != 0;
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
                       .on_processes = arguments.on_processes(seed)});
  }
  const auto failed = run_all(
      sources, arguments, [&](const Source& source, const std::string& what, std::size_t number) {
        std::cout << "program " << number << ": " << command_of(arguments, source) << ": " << what
                  << std::endl;
      });
  std::cout << arguments.programs << " programs from seed " << arguments.seed << ": " << failed
            << (failed >= most_failures ? " or more" : "") << " failed\n";
  return failed == 0 ? 0 : 1;
}

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

}  // namespace

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
