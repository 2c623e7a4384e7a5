#include <CLI/CLI.hpp>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_list.h"
#include "cli/commands.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/version.h"

namespace lockstep::cli {
namespace {

/// Text that roff shows as it is. A hyphen is escaped: roff's own is another character.
std::string roff(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '\\') {
      result += "\\e";
    } else if (letter == '-') {
      result += "\\-";
    } else if ((letter == '.' || letter == '\'') && (result.empty() || result.back() == '\n')) {
      result += "\\&";
      result += letter;
    } else {
      result += letter;
    }
  }
  return result;
}

std::string bold(std::string_view text) { return detail::concat("\\fB", roff(text), "\\fR"); }

std::string page_name(const Command& command) {
  return command.name.empty() ? "lockstep" : "lockstep-" + command.name;
}

void print_argument(std::ostream& out, const Argument& argument) {
  out << ".TP\n";
  for (std::size_t at = 0; at < argument.names.size(); ++at) {
    out << (at == 0 ? "" : ", ") << bold(argument.names[at]);
  }
  if (!argument.value_name.empty() && argument.names.front().starts_with('-')) {
    out << " \\fI" << roff(argument.value_name) << "\\fR";
  }
  out << '\n' << roff(argument.description) << ".\n";
  if (!argument.choices.empty()) {
    out << "One of:";
    for (const auto& choice : argument.choices) {
      out << ' ' << bold(choice) << (&choice == &argument.choices.back() ? "." : ",");
    }
    out << '\n';
  }
  if (argument.required) out << "Required.\n";
  if (!argument.default_value.empty()) out << "Default: " << roff(argument.default_value) << ".\n";
}

void print_page(std::ostream& out, const Command& command, const std::vector<Command>& commands) {
  const bool is_root = command.name.empty();
  std::string title = page_name(command);
  for (char& letter : title) letter = static_cast<char>(std::toupper(letter));
  out << ".\\\" -*- coding: utf-8 -*-\n.TH " << roff(title) << " 1 \"\" \"Lockstep " << version()
      << "\" \"Lockstep\"\n.SH NAME\n"
      << roff(page_name(command)) << " \\- " << roff(command.description) << "\n.SH SYNOPSIS\n"
      << bold(is_root ? "lockstep" : "lockstep " + command.name);
  out << (is_root ? " \\fICOMMAND\\fR" : "") << " [\\fIOPTIONS\\fR]";
  for (const auto& argument : command.positionals) {
    const auto name = detail::concat(" \\fI", roff(argument.names.front()), "\\fR");
    out << (argument.required || command.forwards ? name
                                                  : detail::concat(" [", name.substr(1), "]"));
  }
  out << (command.forwards ? " ..." : "") << '\n';
  if (is_root) {
    out << ".SH COMMANDS\n";
    for (const auto& other : commands) {
      if (other.name.empty()) continue;
      out << ".TP\n"
          << bold(other.name) << '\n'
          << roff(other.description) << ". See " << bold(page_name(other)) << "(1).\n";
    }
  }
  if (!command.positionals.empty()) {
    out << ".SH ARGUMENTS\n";
    for (const auto& argument : command.positionals) print_argument(out, argument);
  }
  out << ".SH OPTIONS\n";
  for (const auto& option : command.options) print_argument(out, option);
  if (!command.footer.empty()) out << ".SH EXAMPLE\n" << roff(command.footer) << '\n';
  out << ".SH EXIT STATUS\n"
         "0 after success, 2 after a command line that cannot be used, 1 after another error.\n";
  if (command.forwards) out << "Otherwise that of the program that was started.\n";
  out << ".SH SEE ALSO\n";
  std::string separator;
  for (const auto& other : commands) {
    if (&other == &command) continue;
    out << separator << bold(page_name(other)) << "(1)";
    separator = ",\n";
  }
  out << '\n';
}

void write_pages(const std::filesystem::path& folder, const std::vector<Command>& commands) {
  std::filesystem::create_directories(folder);
  for (const auto& command : commands) {
    const auto path = folder / (page_name(command) + ".1");
    std::ofstream out(path);
    print_page(out, command, commands);
    out.close();
    if (!out) throw Error(detail::concat("man: ", path.string(), ": cannot be written"));
  }
}

struct ManArguments {
  std::string command;
  std::string folder;
};

void print_man(const ManArguments& arguments, const std::vector<Command>& commands) {
  if (!arguments.folder.empty()) return write_pages(arguments.folder, commands);
  std::string names;
  for (const auto& command : commands) {
    if (command.name == arguments.command) return print_page(std::cout, command, commands);
    names += command.name.empty() ? "" : " " + command.name;
  }
  throw InvalidArgument(
      detail::concat("man: got '", arguments.command, "', expected one of:", names));
}

}  // namespace

void add_man(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("man", "Print the man page of lockstep or of a command");
  command->group("");  // not in --help
  const auto arguments = std::make_shared<ManArguments>();
  command->add_option("COMMAND", arguments->command, "The command (default: lockstep itself)");
  command->add_option("--output", arguments->folder, "Write all pages into this folder")
      ->type_name("DIR");
  command->callback([&app, arguments, &exit_code] {
    print_man(*arguments, list_commands(app));
    exit_code = 0;
  });
}

}  // namespace lockstep::cli
