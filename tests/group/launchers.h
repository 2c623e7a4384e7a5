#pragma once

#include <string>
#include <vector>

#include "tests/launch/launched.h"
#include "tests/mpirun.h"

namespace lockstep::testing {

inline const std::string init_program = LOCKSTEP_BINARY_DIR "/init_program";

inline std::vector<std::string> under_mpirun(int ranks) {
  auto words = mpirun(ranks);
  words.push_back(init_program);
  return words;
}

/// The same, of pairs of ranks that are said to be on one host each.
inline std::vector<std::string> under_mpirun_on_pairs(int ranks) {
  auto words = mpirun(ranks);
  words.insert(words.end(), {"sh", "-c",
                             "r=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; LOCKSTEP_HOST=$((r / 2)) "
                             "exec \"$@\"",
                             "--", init_program});
  return words;
}

/// Whether the Python that LibTorch came with has torchrun. To import it would take seconds.
inline bool has_torchrun() {
  return Launched(
             {LOCKSTEP_TORCH_PYTHON, "-c",
              "import sys, importlib.util; sys.exit(importlib.util.find_spec('torch') is None)"})
             .wait()
             .code == 0;
}

}  // namespace lockstep::testing
