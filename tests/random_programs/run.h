#pragma once

#include <c10/core/DeviceType.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/random_programs/outcome.h"
#include "tests/random_programs/program.h"
#include "tests/random_programs/rules.h"

namespace lockstep::random_programs {

/// How ranks run programs.
struct Ranks {
  bool processes = false;                     ///< started by `lockstep run`, rather than threads
  std::chrono::seconds timeout{20};           ///< longest wait for another rank
  std::filesystem::path program = {};         ///< this executable, which rank processes run
  std::string without = {};                   ///< the categories that are left out, as text
  std::optional<at::DeviceType> device = {};  ///< of the ranks; default: as init() chooses
};

/// A program that is generated from its seed, whole or some of its operations.
struct Source {
  std::uint64_t seed;
  std::vector<int> kept = {};  ///< numbers of operations; empty for all
};

/// Throws: std::invalid_argument when an operation is kept that the program does not have.
Program program_of(const Source& source, const std::vector<Category>& without);

/// "17" or "17:0-3,5", and a list of such with spaces between.
std::string to_text(const Source& source);
std::vector<Source> parse_sources(const std::string& text);

/// Runs programs of equal numbers of ranks one after the other in one world, as long as it lasts.
/// Returns each rank's logs, of all programs to which it has come.
std::vector<std::vector<Log>> run_in_one_world(const std::vector<Source>& sources,
                                               const std::vector<Category>& without,
                                               const Ranks& ranks);

/// The body of a process that run_in_one_world() has started.
void run_as_rank(const std::vector<Source>& sources, const std::vector<Category>& without,
                 const std::filesystem::path& folder);

}  // namespace lockstep::random_programs
