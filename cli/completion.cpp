#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_list.h"
#include "cli/commands.h"
#include "core/text.h"

namespace lockstep::cli {
namespace {

std::string join(const std::vector<std::string>& words, std::string_view separator = " ") {
  std::string text;
  for (const auto& word : words) text.append(text.empty() ? "" : separator).append(word);
  return text;
}

/// The text within single quotes of a shell. escaped: letters that get a backslash besides.
std::string quoted(std::string_view text, std::string_view escaped = "") {
  std::string result;
  for (const char letter : text) {
    if (escaped.find(letter) != std::string_view::npos) result += '\\';
    result += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  }
  return result;
}

// --- bash ---------------------------------------------------------------------------------------

/// The command that sets COMPREPLY to the values that begin with $word.
std::string bash_values(const Argument& argument) {
  switch (argument.value) {
    case Value::choice:
      return detail::concat("mapfile -t COMPREPLY < <(compgen -W '", join(argument.choices),
                            "' -- \"$word\")");
    case Value::directory:
      return "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- \"$word\")";
    case Value::file:
      return "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$word\")";
    case Value::program:  // of PATH, or by its path
      return "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <([[ $word == */* ]] || "
             "compgen -c -- \"$word\"; compgen -f -- \"$word\")";
    case Value::none:
    case Value::any:
      break;
  }
  return ":";
}

void print_bash(const std::vector<Command>& commands) {
  std::cout << R"(# Completion of lockstep for bash, printed by: lockstep completion bash

# Sets command and, of run and mpirun, program: the index of the first word that is left to the program.
_lockstep_scan() {
  local at valued
  command='' program=0
  for ((at = 1; at < COMP_CWORD; ++at)); do
    if [[ -z $command ]]; then
      [[ ${COMP_WORDS[at]} == -* ]] || command=${COMP_WORDS[at]}
      continue
    fi
    case $command in
)";
  for (const auto& command : commands) {
    std::vector<std::string> valued;
    for (const auto& option : command.options) {
      if (option.value == Value::none) continue;
      valued.insert(valued.end(), option.names.begin(), option.names.end());
    }
    if (command.forwards)
      std::cout << "      " << command.name << ") valued=' " << join(valued) << " ' ;;\n";
  }
  std::cout << R"(      *) return ;;
    esac
    if [[ ${COMP_WORDS[at]} == -- ]]; then
      program=$((at + 1))
      return
    elif [[ ${COMP_WORDS[at]} != -* ]]; then
      program=$at
      return
    elif [[ $valued == *" ${COMP_WORDS[at]} "* ]]; then
      # The value is the next word, or the word after an equals sign, at which bash divides words.
      [[ ${COMP_WORDS[at + 1]} != '=' ]] || at=$((at + 1))
      at=$((at + 1))
    fi
  done
}

_lockstep() {
  local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} command program
  COMPREPLY=()
  if [[ $word == '=' ]]; then
    word=''
  elif [[ $option == '=' ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  _lockstep_scan
  if ((program > 0 && program < COMP_CWORD)); then
    if declare -F _command_offset >/dev/null && [[ ${COMP_WORDS[program]} != -* ]]; then
      _command_offset "$program"
    else
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
    return
  fi
  case "$command $option" in
)";
  for (const auto& command : commands) {
    for (const auto& option : command.options) {
      if (option.value == Value::none) continue;
      std::vector<std::string> patterns;
      for (const auto& name : option.names)
        patterns.push_back("'" + command.name + " " + name + "'");
      std::cout << "    " << join(patterns, " | ") << ")\n      " << bash_values(option)
                << "\n      return ;;\n";
    }
  }
  std::cout << "  esac\n  case $command in\n";
  for (const auto& command : commands) {
    std::vector<std::string> names;
    for (const auto& option : command.options) {
      names.insert(names.end(), option.names.begin(), option.names.end());
    }
    std::cout << "    '" << command.name << "')\n      if [[ $word == -* ]]; then\n"
              << "        mapfile -t COMPREPLY < <(compgen -W '" << join(names)
              << "' -- \"$word\")\n";
    if (command.name.empty()) {
      std::vector<std::string> subcommands;
      for (const auto& other : commands) {
        if (!other.name.empty()) subcommands.push_back(other.name);
      }
      std::cout << "      else\n        mapfile -t COMPREPLY < <(compgen -W '" << join(subcommands)
                << "' -- \"$word\")\n";
    } else if (!command.positionals.empty()) {
      std::cout << "      else\n        " << bash_values(command.positionals.front()) << '\n';
    }
    std::cout << "      fi ;;\n";
  }
  std::cout << "  esac\n}\n\ncomplete -F _lockstep lockstep\n";
}

// --- zsh ----------------------------------------------------------------------------------------

constexpr std::string_view zsh_special = "[]:\\";

std::string zsh_values(const Argument& argument) {
  std::string name = argument.value_name.empty() ? argument.names.front() : argument.value_name;
  name = detail::concat(":", quoted(name, zsh_special), ":");
  switch (argument.value) {
    case Value::choice:
      return name + "(" + join(argument.choices) + ")";
    case Value::directory:
      return name + "_files -/";
    case Value::file:
      return name + "_files";
    case Value::program:
      return name + "_normal";
    case Value::any:
      return name + " ";
    case Value::none:
      break;
  }
  return "";
}

/// The arguments of _arguments for the options, a line each.
std::string zsh_options(const Command& command) {
  std::string text;
  for (const auto& option : command.options) {
    for (const auto& name : option.names) {
      text += detail::concat(" \\\n        '(", join(option.names), ")", name);
      if (option.value != Value::none && name.starts_with("--")) text += '=';
      text += detail::concat("[", quoted(option.description, zsh_special), "]", zsh_values(option),
                             "'");
    }
  }
  return text;
}

void print_zsh(const std::vector<Command>& commands) {
  std::cout
      << "#compdef lockstep\n# Completion of lockstep for zsh, printed by: lockstep completion "
         "zsh\n\n_lockstep() {\n  local curcontext=$curcontext state line\n"
         "  local -a commands=(\n";
  for (const auto& command : commands) {
    if (command.name.empty()) continue;
    std::cout << "    '" << command.name << ":" << quoted(command.description, ":\\") << "'\n";
  }
  std::cout << "  )\n  _arguments -C" << zsh_options(commands.front())
            << " \\\n        '1:command:->command' '*::argument:->argument'\n"
               "  case $state in\n    command) _describe command commands ;;\n    argument)\n"
               "      case $words[1] in\n";
  for (const auto& command : commands) {
    if (command.name.empty()) continue;
    std::cout << "        " << command.name << ")\n      _arguments -S" << zsh_options(command);
    for (const auto& argument : command.positionals) {
      std::cout << " \\\n        '" << (command.forwards ? "*:" : "1") << zsh_values(argument)
                << "'";
    }
    std::cout << " ;;\n";
  }
  std::cout << "      esac ;;\n  esac\n}\n\n"
               "if [[ $funcstack[1] == _lockstep ]]; then _lockstep \"$@\"; else compdef _lockstep "
               "lockstep; fi\n";
}

// --- fish ---------------------------------------------------------------------------------------

std::string fish_values(const Argument& argument) {
  switch (argument.value) {
    case Value::choice:
      return detail::concat(" -x -a '", join(argument.choices), "'");
    case Value::directory:
      return " -x -a '(__fish_complete_directories)'";
    case Value::file:
      return " -r -F";
    case Value::program:
      return " -a '(__fish_complete_subcommand --fcs-skip=2)'";
    case Value::any:
      return " -x";
    case Value::none:
      break;
  }
  return "";
}

void print_fish(const std::vector<Command>& commands) {
  std::cout << "# Completion of lockstep for fish, printed by: lockstep completion fish\n"
               "complete -c lockstep -f\n";
  for (const auto& command : commands) {
    const std::string condition = command.name.empty()
                                      ? "__fish_use_subcommand"
                                      : "__fish_seen_subcommand_from " + command.name;
    if (!command.name.empty()) {
      std::cout << "complete -c lockstep -n __fish_use_subcommand -a " << command.name << " -d '"
                << quoted(command.description, "\\") << "'\n";
    }
    for (const auto& option : command.options) {
      std::cout << "complete -c lockstep -n '" << condition << "'";
      for (const auto& name : option.names) {
        std::cout << (name.starts_with("--") ? " -l " : " -s ")
                  << name.substr(name.find_first_not_of('-'));
      }
      std::cout << fish_values(option) << " -d '" << quoted(option.description, "\\") << "'\n";
    }
    for (const auto& argument : command.positionals) {
      std::cout << "complete -c lockstep -n '" << condition << "'" << fish_values(argument) << '\n';
    }
  }
}

}  // namespace

void add_completion(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("completion", "Print the completion of a shell");
  command->group("");  // not in --help
  const auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}).description(""));
  command->callback([&app, shell, &exit_code] {
    const auto commands = list_commands(app);
    if (*shell == "bash") print_bash(commands);
    if (*shell == "zsh") print_zsh(commands);
    if (*shell == "fish") print_fish(commands);
    exit_code = 0;
  });
}

}  // namespace lockstep::cli
