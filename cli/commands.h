#pragma once

namespace CLI {
class App;
}

namespace lockstep::cli {

/// Each adds one subcommand to app. When the user chose it, its callback does the work and leaves
/// the program's exit code in exit_code, which outlives the parsing. A callback reports bad input
/// by throwing InvalidArgument or CLI::ParseError: main prints it and exits with 2, and with 1
/// after any other exception.
void add_run(CLI::App& app, int& exit_code);
void add_mpirun(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_completion(CLI::App& app, int& exit_code);
void add_man(CLI::App& app, int& exit_code);

}  // namespace lockstep::cli
