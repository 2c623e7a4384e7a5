#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/temporary_folder.h"

namespace lockstep::testing {

inline std::string content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// How often a part occurs in a text.
inline int count(const std::string& text, const std::string& part) {
  int times = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size())
    ++times;
  return times;
}

/// What became of a program.
struct Result {
  int code = -1;
  std::string out;
  std::string err;
};

/// Runs programs as a user does, in a folder of its own.
class ProgramRun : public ::testing::Test {
 protected:
  Result run(const std::string& command) const {
    const auto out = folder / "out";
    const auto err = folder / "err";
    const int status =
        std::system(("cd '" + folder.path().string() + "' && OMP_NUM_THREADS=1 " + command + " >'" +
                     out.string() + "' 2>'" + err.string() + "' </dev/null")
                        .c_str());
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .out = content(out),
            .err = content(err)};
  }
  /// On two ranks, each a process.
  Result two_ranks(const std::string& program) const {
    return run(quoted_launcher + " run -n 2 " + quoted_bin + program);
  }
  Result alone(const std::string& program) const { return run(quoted_bin + program); }

  /// The lines of --metrics metrics.jsonl.
  std::vector<nlohmann::json> metrics() const { return json_lines("metrics.jsonl"); }
  std::vector<nlohmann::json> json_lines(const std::string& name) const {
    std::vector<nlohmann::json> lines;
    std::ifstream in(folder / name);
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  const TemporaryFolder folder;
  const std::string bin = LOCKSTEP_BINARY_DIR "/";
  const std::string launcher = bin + "lockstep";
  // For the shell.
  const std::string quoted_bin = "'" + bin + "'";
  const std::string quoted_launcher = quoted_bin + "lockstep";
};

}  // namespace lockstep::testing
