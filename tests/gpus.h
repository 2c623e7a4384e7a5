#pragma once

#include <ATen/Context.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace lockstep::testing {

/// Whether tests that can use GPUs do so (LOCKSTEP_TEST_DEVICE=cuda). tools/prove-gpu sets it.
inline bool on_gpus() {
  const char* const text = std::getenv("LOCKSTEP_TEST_DEVICE");
  const std::string name = text != nullptr ? text : "";
  if (!name.empty() && name != "cuda") {
    throw std::runtime_error("LOCKSTEP_TEST_DEVICE: got '" + name + "', expected cuda or nothing");
  }
  return !name.empty();
}

/// Lets operators of a GPU compute in single precision, and each run in the same way.
inline void compute_exactly() {
  auto& context = at::globalContext();
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(false);
  context.setDeterministicCuDNN(true);
}

}  // namespace lockstep::testing
