#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <initializer_list>
#include <string>

namespace lockstep::testing {

/// How a script ended, and what it printed.
struct Answer {
  /// Whether Python is missing, or a package: scripts exit 77 then and print the reason.
  bool is_missing() const { return code == 77 || code == 127; }
  int code = -1;
  std::string text = {};
};

/// Runs a script of the source tree with the Python that LibTorch came with.
inline Answer python(const std::string& script, std::initializer_list<std::string> arguments) {
  std::string command =
      "'" LOCKSTEP_TORCH_PYTHON "' -B -W ignore '" LOCKSTEP_SOURCE_DIR "/" + script + "'";
  for (const std::string& argument : arguments) command += " '" + argument + "'";
  Answer answer;
  FILE* const output = ::popen((command + " </dev/null").c_str(), "r");
  if (output == nullptr) return answer;
  for (int c = 0; (c = std::fgetc(output)) != EOF;) answer.text += static_cast<char>(c);
  const int status = ::pclose(output);
  if (WIFEXITED(status)) answer.code = WEXITSTATUS(status);
  return answer;
}

}  // namespace lockstep::testing
