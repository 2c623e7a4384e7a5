#pragma once

#include <string>

#include "tests/launch/launched.h"
#include "tests/mpirun.h"

namespace lockstep::testing {

inline const std::string init_program = LOCKSTEP_BINARY_DIR "/init_program";

inline std::vector<std::string> under_mpirun(int ranks, const std::string& behaviour = {}) {
  auto words = mpirun(ranks);
  words.insert(words.end(), {init_program, behaviour});
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
