#include "tests/random_programs/run.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "core/text.h"
#include "lockstep/init.h"
#include "tests/random_programs/generate.h"
#include "tests/random_programs/interpreter.h"
#include "tests/temporary_folder.h"

namespace lockstep::random_programs {
namespace {

using lockstep::detail::concat;

/// An error of a world ends it: no further program can run.
bool ends_world(const Log& log) {
  if (log.empty()) return false;
  const auto& error = log.back().error;
  return !error.empty() && error != "InvalidArgument" && error != "CheckpointError";
}

/// Numbers as in "0-3,5".
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += concat(text.empty() ? "" : ",", numbers[i]);
    if (last > i) text += concat('-', numbers[last]);
    i = last + 1;
  }
  return text;
}

std::vector<int> parse_ranges(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto dash = word.find('-');
    const int first = std::stoi(word);
    const int last = dash == std::string::npos ? first : std::stoi(word.substr(dash + 1));
    for (int i = first; i <= last; ++i) numbers.push_back(i);
  }
  return numbers;
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
                  {.device = ranks.device, .timeout = ranks.timeout});
  return logs;
}

/// Runs a command with its output discarded and waits for its end.
void run_command(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + words[0]);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::vector<std::vector<Log>> run_on_processes(const std::vector<Source>& sources, int ranks,
                                               const Ranks& how) {
  const lockstep::testing::TemporaryFolder folder;
  std::string list;
  for (const auto& source : sources) list += concat(list.empty() ? "" : " ", to_text(source));
  std::vector<std::string> command{(how.program.parent_path() / "lockstep").string(),
                                   "run",
                                   "-n",
                                   std::to_string(ranks),
                                   "--timeout",
                                   std::to_string(how.timeout.count()),
                                   how.program.string(),
                                   "--rank-of",
                                   list,
                                   "--folder",
                                   folder.path().string()};
  if (!how.without.empty()) command.insert(command.end(), {"--without", how.without});
  run_command(std::move(command));
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

}  // namespace

Program program_of(const Source& source, const std::vector<Category>& without) {
  auto program = generate(source.seed, without);
  if (source.kept.empty()) return program;
  std::vector<Operation> operations;
  for (const int number : source.kept) {
    operations.push_back(program.operations.at(static_cast<std::size_t>(number)));
  }
  program.operations = std::move(operations);
  return program;
}

std::string to_text(const Source& source) {
  return source.kept.empty() ? std::to_string(source.seed)
                             : concat(source.seed, ':', ranges(source.kept));
}

std::vector<Source> parse_sources(const std::string& text) {
  std::vector<Source> sources;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto colon = word.find(':');
    Source source{.seed = std::stoull(word)};
    if (colon != std::string::npos) source.kept = parse_ranges(word.substr(colon + 1));
    sources.push_back(std::move(source));
  }
  return sources;
}

std::vector<std::vector<Log>> run_in_one_world(const std::vector<Source>& sources,
                                               const std::vector<Category>& without,
                                               const Ranks& ranks) {
  std::vector<Program> programs;
  for (const auto& source : sources) programs.push_back(program_of(source, without));
  return ranks.processes ? run_on_processes(sources, programs[0].ranks, ranks)
                         : run_on_threads(programs, ranks);
}

void run_as_rank(const std::vector<Source>& sources, const std::vector<Category>& without,
                 const std::filesystem::path& folder) {
  const auto world = lockstep::init();
  at::set_num_threads(1);
  std::ofstream out(folder / concat("rank", world.rank()), std::ios::binary);
  for (const auto& source : sources) {
    const auto log = interpret(program_of(source, without), world, folder);
    write(out, log);
    out.flush();
    if (ends_world(log)) return;
  }
}

}  // namespace lockstep::random_programs
