#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::cli {

/// Each function adds one subcommand to app. The subcommand's callback runs it and stores the
/// program's exit code in exit_code, which is 0 before and must outlive the parsing. For invalid
/// input, a callback throws InvalidArgument or CLI::ParseError: main() prints it and exits with 2.
/// After any other exception, main() exits with 1.
void add_run(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_status(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);

/// Adds an option whose value --help names `type`. Returns the option.
template <class Value>
CLI::Option* add_value(CLI::App* command, const char* name, Value& value, const char* type,
                       const char* text) {
  return command->add_option(name, value, text)->type_name(type);
}

/// Adds an option that takes one of the words. The value becomes true, or the enumerator 1, for
/// `yes`.
template <class Value>
void add_switch(CLI::App* command, const char* name, Value& value, std::vector<std::string> words,
                const char* yes, const char* text) {
  const auto take = [&value, yes](const std::string& word) {
    value = static_cast<Value>(word == yes);
  };
  command->add_option_function<std::string>(name, take, text)
      ->check(CLI::IsMember(std::move(words)).description(""))
      ->type_name("WHAT");
}

/// Lets the first word that is no option of the command end the parsing: the program to run, for
/// program_words().
void add_program(CLI::App* command);

/// Refuses values of the option that are no number from least to most. Returns the option.
CLI::Option* in_range(CLI::Option* option, double least, double most);

/// Adds an option that is a number from least to most. Without a value (std::optional), --help
/// shows no default.
template <class Number>
CLI::Option* add_number(CLI::App* command, const char* name, Number& value, double least,
                        double most, const char* type, const char* text) {
  auto* option = in_range(add_value(command, name, value, type, text), least, most);
  if constexpr (std::is_arithmetic_v<Number>) option->capture_default_str();
  return option;
}

/// The message about words of the command line that no command takes: it names the first, and what
/// was probably meant.
std::string unexpected_words(const CLI::App& app);

/// The program that the command runs, and the program's arguments: the words after the command's
/// own options. `options` is for the example in an error. Throws: InvalidArgument if there is no
/// program, or an unknown option before it.
std::pair<std::string, std::vector<std::string>> program_words(const CLI::App& command,
                                                               std::string_view options = {});

}  // namespace lockstep::cli
