#include "launch/mpirun.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

struct MpirunArguments {
  double linger = 30;
  std::string placeholder;
};

}  // namespace

void add_mpirun(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "mpirun", "Run OpenMPI's mpirun, and end it if it does not return after a host is lost");
  const auto arguments = std::make_shared<MpirunArguments>();
  command->footer("As in: lockstep mpirun --host a:2,b:2 -np 4 ./program --its-option");
  command
      ->add_option("--linger", arguments->linger,
                   "Longest time from the end of this host's last rank to the end of mpirun")
      ->type_name("SECONDS")
      ->capture_default_str();
  // The first word that is not an option of this command, and all following words, are mpirun's.
  command->prefix_command();
  command->validate_positionals();
  command
      ->add_option("ARGUMENTS", arguments->placeholder,
                   "Arguments of mpirun, the program and its own included (required)")
      ->check([](const std::string&) { return std::string("left to mpirun"); }, "", "");
  command->callback([arguments, command, &exit_code] {
    launch::MpirunOptions options{.arguments = command->remaining(),
                                  .linger = std::chrono::duration<double>(arguments->linger)};
    if (options.arguments.empty()) {
      throw InvalidArgument(
          "mpirun: no arguments given; as in: lockstep mpirun -np 4 ./program --its-option");
    }
    exit_code = launch::run_mpirun(options);
  });
}

}  // namespace lockstep::cli
