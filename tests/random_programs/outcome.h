#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/group.h"
#include "tests/random_programs/program.h"

namespace lockstep::random_programs {

/// The elements of a tensor; nothing where it is undefined.
using Values = std::optional<std::vector<double>>;

/// The observable outcome of an operation on one rank.
struct Outcome {
  std::string error = {};  ///< type of what was thrown; empty if nothing was
  std::string text = {};   ///< its message
  /// Losses, then of each unit parameters and gradients by turns, then its buffer.
  std::vector<Values> values = {};
};

/// One rank's outcomes after each operation of a program, up to the first that failed.
using Log = std::vector<Outcome>;

/// How the ranks' values are to be compared.
enum class Check {
  exact,  ///< with the oracle's, to 1e-12
  same,   ///< between ranks, bit by bit
  none,   ///< the value is not determined yet
};

/// The expected outcome of an operation on all ranks.
struct Expected {
  std::vector<std::string> names = {};  ///< of the values
  std::vector<Check> checks = {};
  std::vector<std::vector<Values>> values = {};  ///< of each rank
  std::string error =
      {};  ///< type of the error that all ranks must raise; "any" for one of any type
  std::string mentions = {};  ///< what the message of an error of any type must contain
  bool may_fail = false;      ///< an error of the type is right, and the values are as well
  Mask later = 0;             ///< ranks that raise the error at a later operation
  bool ends = false;          ///< with an error the program ends
};

/// Carries the program out as one rank, with Lockstep, up to its end or the first error that it
/// does not ask for. The folder is for checkpoints, the same on all ranks.
/// Ranks: all of the world.
Log interpret(const Program& program, const Group& world, const std::filesystem::path& folder);

/// The expected outcome on all ranks after each operation. One process holds every rank's models.
/// It applies the operations rank by rank with LibTorch alone and computes means itself.
std::vector<Expected> expect(const Program& program);

/// Describes the difference from the expected outcomes; nothing if there is none. Logs: of each
/// rank.
std::optional<std::string> difference(const std::vector<Expected>& expected,
                                      const std::vector<Log>& logs);

void write(std::ostream& out, const Log& log);
/// Nothing where the stream ends before the log does.
std::optional<Log> read_log(std::istream& in);

}  // namespace lockstep::random_programs
