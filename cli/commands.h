#pragma once

namespace CLI {
class App;
}

namespace lockstep::cli {

/// Each function adds one subcommand to app. The subcommand's callback runs it and stores the
/// program's exit code in exit_code, which must outlive the parsing. For invalid input, a callback
/// throws InvalidArgument or CLI::ParseError: main() prints it and exits with 2. After any other
/// exception, main() exits with 1.
void add_run(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_status(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);

}  // namespace lockstep::cli
