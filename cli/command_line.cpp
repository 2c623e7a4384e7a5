#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "core/environment.h"
#include "core/text.h"
#include "lockstep/closest_match.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

std::string meant(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string match = closest_match(word, candidates);
  return match.empty() ? "" : ", did you mean " + match + "?";
}

/// ", did you mean --ranks?" of a misspelt option of the command; empty if no option is close.
std::string meant_option(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  // torchrun's --nproc_per_node, and --np.
  if (word.starts_with("--np") && std::ranges::count(names, "--ranks") > 0) {
    return meant("--ranks", names);
  }
  return meant(word.substr(0, word.find('=')), names);
}

}  // namespace

std::pair<std::string, std::vector<std::string>> program_words(const CLI::App& command,
                                                               std::string_view options) {
  auto words = command.remaining();
  const auto& name = command.get_name();
  if (!words.empty() && words.front() == "--") {
    words.erase(words.begin());
  } else if (!words.empty() && words.front().starts_with('-')) {
    const auto match = meant_option(command, words.front());
    throw InvalidArgument(
        detail::concat(name, ": unknown option '", words.front(), "'",
                       match.empty() ? " (the program's own come after its name)" : match));
  }
  if (words.empty()) {
    throw InvalidArgument(detail::concat(name, ": no program given; as in: lockstep ", name, ' ',
                                         options, options.empty() ? "" : " ",
                                         "./program --its-option"));
  }
  return {words.front(), {words.begin() + 1, words.end()}};
}

// The remaining words are not parsed. A positional that accepts no value makes "--" end the
// parsing, too.
void add_program(CLI::App* command) {
  command->prefix_command();
  command->validate_positionals();
  command
      ->add_option_function<std::string>(
          "PROGRAM", [](const std::string&) {}, "Program to run, and its own arguments (required)")
      ->check([](const std::string&) { return std::string("left to the program"); }, "", "");
}

CLI::Option* in_range(CLI::Option* option, double least, double most) {
  const auto problem = [least, most](const std::string& word) -> std::string {
    const auto value = detail::parse_number<double>(word);
    if (value && *value >= least && *value <= most) return {};
    return detail::concat("got '", word, "', expected a number from ", least, " to ", most);
  };
  return option->check(problem, "", "");
}

std::string unexpected_words(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const auto words = app.remaining(true);
  const std::string word = words.empty() ? "" : words.front();
  const std::string prefix = chosen.empty() ? "" : command.get_name() + ": ";
  if (word.starts_with('-')) {
    return detail::concat(prefix, "unknown option '", word, "'", meant_option(command, word));
  }
  if (!chosen.empty()) return detail::concat(prefix, "unexpected argument '", word, "'");
  std::vector<std::string> names;
  const auto listed = [](const CLI::App* one) { return !one->get_group().empty(); };
  for (const CLI::App* one : app.get_subcommands(listed)) names.push_back(one->get_name());
  const std::string match = meant(word, names);
  return detail::concat(
      "unknown command '", word, "'",
      match.empty() ? ", expected one of: " + detail::joined(names, ", ") : match);
}

}  // namespace lockstep::cli
