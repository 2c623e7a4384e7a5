#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <tuple>
#include <vector>

#include "tests/big_endian.h"
#include "tests/matchers.h"
#include "tests/temporary_folder.h"

namespace lockstep::testing {

/// How often a part occurs in a text.
inline int count(const std::string& text, const std::string& part) {
  int times = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size())
    ++times;
  return times;
}

/// How many lines begin so, whichever rank's. The launcher repeats the last words of the rank that
/// failed first; those are indented.
inline int complaints(const std::string& err, const std::string& begin) {
  int times = 0;
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) line.erase(0, line.find("] ") + 2);
    times += line.starts_with(begin) ? 1 : 0;
  }
  return times;
}

/// A folder with MNIST's four files of so many digits. Each class is a bright bar in a row of its
/// own, among noise.
inline void write_digits(const std::filesystem::path& folder, int train, int test) {
  std::filesystem::create_directory(folder);
  for (const auto& [prefix, count, seed] : {std::tuple("train", train, 1U), {"t10k", test, 2U}}) {
    std::mt19937 random(seed);
    std::string images = big_endian({0x803, static_cast<std::uint32_t>(count), 28, 28});
    std::string labels = big_endian({0x801, static_cast<std::uint32_t>(count)});
    for (int i = 0; i < count; ++i) {
      const int label = static_cast<int>(random() % 10);
      labels += static_cast<char>(label);
      for (int pixel = 0; pixel < 28 * 28; ++pixel)
        images += static_cast<char>(pixel / 28 / 2 == label + 2 ? 250 : random() % 40);
    }
    const auto path = (folder / prefix).string();
    std::ofstream(path + "-images-idx3-ubyte", std::ios::binary) << images;
    std::ofstream(path + "-labels-idx1-ubyte", std::ios::binary) << labels;
  }
}

/// The exit code and outputs of a program.
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
  /// On so many ranks, each a process.
  Result on_ranks(int ranks, const std::string& program) const {
    return run(quoted_launcher + " run -n " + std::to_string(ranks) + ' ' + quoted_bin + program);
  }
  Result two_ranks(const std::string& program) const { return on_ranks(2, program); }
  Result alone(const std::string& program) const { return run(quoted_bin + program); }

  /// That it failed so, and that one line of one rank says why.
  static void expect_one_complaint(const Result& result, int code, const std::string& said) {
    EXPECT_EQ(result.code, code) << result.out << result.err;
    EXPECT_EQ(complaints(result.err, said), 1) << said << '\n' << result.err;
    // Nor does another rank say something else.
    const std::string program = said.substr(0, said.find(": ") + 2);
    EXPECT_EQ(complaints(result.err, program), 1) << program << '\n' << result.err;
  }

  /// The lines of --metrics metrics.jsonl.
  std::vector<nlohmann::json> metrics() const { return json_lines("metrics.jsonl"); }
  /// A value of all its lines that have it.
  std::vector<double> values(const char* name) const {
    std::vector<double> found;
    for (const auto& line : metrics())
      if (line.contains(name)) found.push_back(line[name]);
    return found;
  }
  std::vector<nlohmann::json> json_lines(const std::string& name) const {
    std::vector<nlohmann::json> lines;
    std::ifstream in(folder / name);
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  /// The content of the newest file in a folder of checkpoints.
  std::string newest(const std::string& name) const {
    std::filesystem::path found;
    for (const auto& entry : std::filesystem::directory_iterator(folder / name))
      if (!entry.path().filename().string().starts_with('.')) found = std::max(found, entry.path());
    return content(found);
  }

  const TemporaryFolder folder;
  const std::string bin = LOCKSTEP_BINARY_DIR "/";
  const std::string launcher = bin + "lockstep";
  // For the shell.
  const std::string quoted_bin = "'" + bin + "'";
  const std::string quoted_launcher = quoted_bin + "lockstep";
};

}  // namespace lockstep::testing
