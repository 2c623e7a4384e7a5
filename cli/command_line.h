#pragma once

#include <string>

namespace CLI {
class App;
}

namespace lockstep::cli {

/// ", did you mean --ranks?" of a misspelt option of the command; empty if no option is close.
std::string meant_option(const CLI::App& command, const std::string& word);

/// The message about words of the command line that no command takes: it names the first, and what
/// was probably meant.
std::string unexpected_words(const CLI::App& app);

}  // namespace lockstep::cli
