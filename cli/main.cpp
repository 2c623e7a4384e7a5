#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include "cli/command_line.h"
#include "core/system/terminal.h"
#include "core/text.h"
#include "launch/job/console.h"
#include "lockstep/error.h"
#include "lockstep/version.h"

namespace {

/// Exit code for invalid input. Exit codes of ranks are passed on unchanged.
constexpr int usage_error = 2;

void print_error(std::string_view text) {
  const bool colour = lockstep::detail::shows_colour(STDERR_FILENO);
  std::cerr << lockstep::detail::in_tone("lockstep:", lockstep::detail::Tone::error, colour) << ' '
            << text << '\n';
}

/// Prints a help text or a version, or what is wrong with the command line. Returns the exit code.
int end_parsing(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  const bool extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  print_error(extra ? lockstep::cli::unexpected_words(app) : error.what());
  const auto chosen = app.get_subcommands();
  std::cerr << "Run lockstep " << (chosen.empty() ? "" : chosen.front()->get_name() + ' ')
            << "--help for more information.\n";
  return usage_error;
}

/// Answers a command of earlier versions with its replacement. --help does not list it.
void add_removed(CLI::App& app, const char* name, const char* product) {
  auto* command = app.add_subcommand(name)->group("")->prefix_command();
  command->callback([name, product] {
    throw lockstep::InvalidArgument(lockstep::detail::concat(
        name, ": lockstep no longer prints ", product,
        ". Run lockstep --help for the commands, and lockstep COMMAND --help for the options."));
  });
}

int run(int argc, char** argv) {
  // mpiexec's name of -n: CLI11 would take it as -n with the value p.
  if (argc > 2 && argv[1] == std::string_view("run") && argv[2] == std::string_view("-np"))
    argv[2][2] = '\0';
  CLI::App app{"Lockstep: data-parallel training, replicas that step together", "lockstep"};
  app.set_version_flag("--version", "lockstep " + std::string(lockstep::version()));
  app.require_subcommand(0, 1);  // none is answered below, an unknown one by its name
  int exit_code = 0;
  using namespace lockstep::cli;
  for (auto* const add :
       {add_run, add_bench, add_plan, add_tune, add_doctor, add_report, add_status, add_explain}) {
    add(app, exit_code);
  }
  add_removed(app, "completion", "the completion of a shell");
  add_removed(app, "man", "man pages");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return end_parsing(app, error);
  } catch (const lockstep::InvalidArgument& error) {
    print_error(error.what());
    return usage_error;
  } catch (const std::exception& error) {
    print_error(error.what());
    return 1;
  }
  if (app.get_subcommands().empty()) {
    std::cerr << app.help();
    return usage_error;
  }
  return exit_code;
}

// Open MPI 5 links UCX, which takes SIGHUP when it is loaded, even if it is ignored, as under
// nohup.
bool hangup_ignored = false;

void look_at_hangup() {
  struct sigaction action {};
  sigaction(SIGHUP, nullptr, &action);
  hangup_ignored = action.sa_handler == SIG_IGN;
}

/// Runs before the libraries are initialised.
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)() = look_at_hangup;

}  // namespace

int main(int argc, char** argv) {
  if (hangup_ignored) std::signal(SIGHUP, SIG_IGN);
  const int exit_code = run(argc, argv);
  // These were for the ranks of a job, which has ended.
  for (const int signal : lockstep::launch::forwarded) std::signal(signal, SIG_IGN);
  errno = 0;
  std::cout.flush();
  if (std::cout) return exit_code;
  const int error = errno != 0 ? errno : EIO;  // the error of an earlier write
  print_error(std::string("output was lost: stdout: ") + std::strerror(error));
  return exit_code != 0 ? exit_code : 1;
}
