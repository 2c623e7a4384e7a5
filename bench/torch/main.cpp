// The benchmarks that need LibTorch, as one program: `bench_torch NAME …`, or by the link
// bench_NAME. One program compiles in a third of the time that eight take.
#include <lockstep/error.h>
#include <lockstep/init.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::bench {

/// Adds its options to a command, and returns what the command runs.
using Program = std::function<void()>(CLI::App& command);

namespace checkpoint {
Program program;
}
namespace denormals {
Program program;
}
namespace exchange {
Program program;
}
namespace memory {
Program program;
}
namespace overlap {
Program program;
}
namespace start {
Program program;
}
namespace strategy_digests {
Program program;
}
namespace victim {
Program program;
}

namespace {

/// The command line, with the name that a link has as its first argument.
std::vector<std::string> arguments(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const std::string_view path = argv[0];
  const auto name = path.substr(path.rfind('/') + 1);
  constexpr std::string_view prefix = "bench_";
  if (name != "bench_torch" && name.starts_with(prefix)) {
    words.emplace(words.begin(), name.substr(prefix.size()));
  }
  return {words.rbegin(), words.rend()};  // as CLI::App::parse() takes them
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  CLI::App app("Benchmarks of programs that use LibTorch", "bench_torch");
  app.require_subcommand(1);
  const auto add = [&app](const char* name, const char* about, Program* program) {
    auto* const command = app.add_subcommand(name, about);
    command->callback(program(*command));
  };
  add("checkpoint", "Times checkpoints of a large model", checkpoint::program);
  add("denormals", "Times a long run whose idle weights decay into denormals", denormals::program);
  add("exchange", "Times strategies on one bucket", exchange::program);
  add("memory", "Memory and time of a step whose state is divided among the ranks",
      memory::program);
  add("overlap", "What part of the communication is hidden behind backward", overlap::program);
  add("start", "Starts, exchanges once, and ends", start::program);
  add("strategy_digests", "The bits that every strategy computes", strategy_digests::program);
  add("victim", "A rank that random_kills may end", victim::program);
  try {
    app.parse(arguments(argc, argv));
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const lockstep::Error& error) {
    lockstep::record_error(error);
    std::cerr << std::string("error: ") + error.what() + '\n' << std::flush;
    return 1;
  }
}
