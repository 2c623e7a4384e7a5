#include "cli/command_list.h"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace lockstep::cli {
namespace {

std::vector<std::string> split_choices(const std::string& text) {
  std::vector<std::string> choices;
  std::string word;
  for (const char letter : text) {
    if (letter != ',') {
      word += letter;
      continue;
    }
    choices.push_back(word);
    word.clear();
  }
  choices.push_back(word);
  return choices;
}

Argument read_argument(const CLI::Option& option) {
  Argument argument{.description = option.get_description(),
                    .default_value = option.get_default_str(),
                    .required = option.get_required()};
  if (option.get_positional()) {
    argument.names.push_back(option.get_name(true));
  } else {
    for (const auto& name : option.get_snames()) argument.names.push_back("-" + name);
    for (const auto& name : option.get_lnames()) argument.names.push_back("--" + name);
  }
  if (option.get_items_expected_max() == 0) return argument;
  // CLI11 appends the names of the validators: "TEXT:{sum,avg}", "FLOAT:INT in [0 - 5]".
  const std::string type = option.get_type_name();
  argument.value_name = type.substr(0, type.find(':'));
  const auto open = type.find(":{");
  const auto close = type.find('}');
  if (open != std::string::npos && close != std::string::npos) {
    argument.choices = split_choices(type.substr(open + 2, close - open - 2));
    argument.value = Value::choice;
  } else if (argument.names.front() == "PROGRAM") {
    argument.value = Value::program;
  } else if (argument.value_name == "DIR" || argument.names.front() == "DIR") {
    argument.value = Value::directory;
  } else if (argument.value_name == "FILE" || argument.value_name == "TEXT") {
    argument.value = Value::file;
  } else {
    argument.value = Value::any;
  }
  return argument;
}

Command read_command(const CLI::App& app, bool is_root) {
  Command command{.name = is_root ? "" : app.get_name(),
                  .description = app.get_description(),
                  .footer = app.get_footer(),
                  .forwards = app.get_prefix_command()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    auto& list = option->get_positional() ? command.positionals : command.options;
    list.push_back(read_argument(*option));
  }
  return command;
}

}  // namespace

std::vector<Command> list_commands(const CLI::App& app) {
  std::vector<Command> commands{read_command(app, true)};
  for (const CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!subcommand->get_group().empty()) commands.push_back(read_command(*subcommand, false));
  }
  return commands;
}

}  // namespace lockstep::cli
