#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::cli {

/// ", did you mean --ranks?" of a misspelt option of the command; empty if no option is close.
std::string meant_option(const CLI::App& command, const std::string& word);

/// The message about words of the command line that no command takes: it names the first, and what
/// was probably meant.
std::string unexpected_words(const CLI::App& app);

/// The program that the command runs, and the program's arguments: the words after the command's
/// own options. `options` is for the example in an error. Throws: InvalidArgument if there is no
/// program, or an unknown option before it.
std::pair<std::string, std::vector<std::string>> program_words(const CLI::App& command,
                                                               std::string_view options = {});

}  // namespace lockstep::cli
