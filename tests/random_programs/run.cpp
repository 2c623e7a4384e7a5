#include "tests/random_programs/run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <utility>

#include "core/text.h"
#include "lockstep/init.h"
#include "tests/temporary_folder.h"

namespace lockstep::random_programs {
namespace {

using lockstep::detail::concat;
using lockstep::detail::joined;
using lockstep::detail::lines_in;
using lockstep::detail::quoted;

/// Longest wait for another rank.
constexpr std::chrono::seconds longest_wait(20);
/// How many programs one world runs at most: a failure repeats those that came after it.
constexpr std::size_t programs_of_a_world = 50;

/// An error of a world ends it: no further program can run.
bool ends_world(const Log& log) {
  if (log.empty()) return false;
  const auto& error = log.back().error;
  return !error.empty() && error != "invalid_argument" && error != "checkpoint";
}

std::vector<std::vector<Log>> run_on_threads(const std::vector<Program>& programs,
                                             const Ranks& ranks) {
  const lockstep::testing::TemporaryFolder folder;
  std::vector<std::vector<Log>> logs(static_cast<std::size_t>(programs[0].ranks));
  lockstep::spawn(programs[0].ranks,
                  [&](const Group& world) {
                    at::set_num_threads(1);
                    auto& mine = logs[static_cast<std::size_t>(world.rank())];
                    for (const auto& program : programs) {
                      mine.push_back(interpret(program, world, folder.path()));
                      if (ends_world(mine.back())) return;
                    }
                  },
                  {.device = ranks.device, .timeout = longest_wait});
  return logs;
}

std::vector<std::vector<Log>> run_on_processes(const std::vector<Source>& sources, int ranks,
                                               const Ranks& how) {
  const lockstep::testing::TemporaryFolder folder;
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  const auto list = joined(sources, " ", [](const Source& source) { return to_text(source); });
  const auto command =
      concat(quoted(program.parent_path() / "lockstep"), " run -n ", ranks, " --timeout ",
             longest_wait.count(), ' ', quoted(program), " --rank-of ", quoted(list), " --folder ",
             quoted(folder.path()), how.options, " </dev/null");
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
                                               const Ranks& ranks) {
  std::vector<Program> programs;
  for (const auto& source : sources) programs.push_back(program_of(source));
  return sources[0].on_processes ? run_on_processes(sources, programs[0].ranks, ranks)
                                 : run_on_threads(programs, ranks);
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

}  // namespace

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

std::size_t run_all(const std::vector<Source>& sources, const Ranks& ranks,
                    const std::function<void(const Failure&)>& tell) {
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
      const auto logs = run_in_one_world(batch, ranks);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        ++next;
        ++compared;
        const auto found = difference(expect(program_of(batch[i])), logs_of(logs, i));
        if (found) {
          ++failures;
          tell({.source = batch[i], .what = *found, .number = compared});
        }
        // Results after a failure in the same world are meaningless.
        if (found || !goes_on(logs, i)) break;
      }
    }
  }
  return failures;
}

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

}  // namespace lockstep::random_programs
