#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iostream>

#include "cli/commands.h"
#include "lockstep/error.h"
#include "lockstep/version.h"

namespace {

/// Exit code for invalid input. Exit codes of ranks are passed on unchanged.
constexpr int usage_error = 2;

int run(int argc, char** argv) {
  CLI::App app{"Lockstep: data-parallel training, replicas that step together", "lockstep"};
  app.set_version_flag("--version", "lockstep " + std::string(lockstep::version()));
  app.require_subcommand(0, 1);  // none is answered below, an unknown one by its name
  int exit_code = 0;
  lockstep::cli::add_run(app, exit_code);
  lockstep::cli::add_mpirun(app, exit_code);
  lockstep::cli::add_bench(app, exit_code);
  lockstep::cli::add_plan(app, exit_code);
  lockstep::cli::add_doctor(app, exit_code);
  lockstep::cli::add_report(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : usage_error;
  } catch (const lockstep::InvalidArgument& error) {
    std::cerr << "lockstep: " << error.what() << '\n';
    return usage_error;
  } catch (const std::exception& error) {
    std::cerr << "lockstep: " << error.what() << '\n';
    return 1;
  }
  if (app.get_subcommands().empty()) {
    std::cerr << app.help();
    return usage_error;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  const int exit_code = run(argc, argv);
  errno = 0;
  std::cout.flush();
  if (std::cout) return exit_code;
  const int error = errno != 0 ? errno : EIO;  // the error of an earlier write
  std::cerr << "lockstep: output was lost: stdout: " << std::strerror(error) << '\n';
  return exit_code != 0 ? exit_code : 1;
}
