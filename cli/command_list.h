#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::cli {

/// What a word of the command line may be.
enum class Value { none, any, choice, file, directory, program };

/// An option, or an argument without a name, as the user sees it.
struct Argument {
  std::vector<std::string> names = {};  // "-n", "--ranks"; of an argument without a name "DIR"
  Value value = Value::none;
  std::string value_name = {};            // "SECONDS"
  std::vector<std::string> choices = {};  // of Value::choice
  std::string description;
  std::string default_value;
  bool required = false;
};

struct Command {
  std::string name;  // empty: lockstep itself
  std::string description;
  std::string footer;
  bool forwards = false;  // the words after its own options are another program's
  std::vector<Argument> options = {};
  std::vector<Argument> positionals = {};
};

/// lockstep itself and then its subcommands. Hidden options and subcommands are left out.
std::vector<Command> list_commands(const CLI::App& app);

}  // namespace lockstep::cli
