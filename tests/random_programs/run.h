#pragma once

#include <c10/core/DeviceType.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/random_programs/outcome.h"
#include "tests/random_programs/program.h"
#include "tests/random_programs/rules.h"

namespace lockstep::random_programs {

/// How this program was called.
struct Ranks {
  std::string options = {};                   ///< of this program, for rank processes, too
  std::optional<at::DeviceType> device = {};  ///< of the ranks; default: as init() chooses
};

/// A program that is generated from its seed, whole or some of its operations.
struct Source {
  std::uint64_t seed;
  bool on_device = false;      ///< as Program::on_device
  bool on_processes = false;   ///< its ranks are started by `lockstep run`, rather than threads
  std::vector<int> kept = {};  ///< numbers of operations; empty for all
};

/// Throws: std::invalid_argument when an operation is kept that the program does not have.
Program program_of(const Source& source);

/// "17" or "17:0,1,5", and a list of such with spaces between.
std::string to_text(const Source& source);
std::vector<Source> parse_sources(const std::string& text, bool on_device);

struct Failure {
  Source source;
  std::string what;
  std::size_t number = 0;  ///< programs compared so far, this one among them
};

/// How many failing programs end a search.
inline constexpr std::size_t most_failures = 5;

/// Runs programs, each on as many ranks as it asks for; those of the same number of ranks share
/// worlds. Tells of each that fails as soon as it has, and ends after most_failures. Returns how
/// many.
std::size_t run_all(const std::vector<Source>& sources, const Ranks& ranks,
                    const std::function<void(const Failure&)>& tell);

/// The failing program without the operations that it fails without: any other that is left out
/// makes it illegal, or right.
Source shrink(const Source& failing, const std::function<bool(const Source&)>& fails);

/// The body of a process that run_all() has started.
void run_as_rank(const std::vector<Source>& sources, const std::filesystem::path& folder);

}  // namespace lockstep::random_programs
