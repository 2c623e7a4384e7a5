#pragma once

#include <string>
#include <vector>

#include "comm/mpi/mpi.h"

namespace lockstep::testing {

/// The command that starts so many ranks by this build's MPI, to be followed by a program.
inline std::vector<std::string> mpirun(int ranks) {
  std::vector<std::string> words{LOCKSTEP_MPIEXEC};
  if (mpi::version().starts_with("Open MPI")) {
    words.insert(words.end(), {"--oversubscribe", "--allow-run-as-root"});
  }
  words.insert(words.end(), {"-n", std::to_string(ranks)});
  return words;
}

}  // namespace lockstep::testing
