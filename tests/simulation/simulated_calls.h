#pragma once

#include "tests/simulation/simulated_kernel.h"

namespace lockstep::testing {

/// The kernel that serves the running simulated thread.
inline SimulatedKernel& kernel() { return *SimulatedKernel::current(); }

}  // namespace lockstep::testing

// SIMULATED(result, name, (parameters), (arguments)) { body } is what a function of the C library
// does in simulated threads. The linker replaces NAME in the shipped code by __wrap_NAME, and
// __real_NAME is the C library's. SIMULATED_CALL is the same for a call of the kernel.
#define SIMULATED_IF(is_simulated, result, name, parameters, arguments)            \
  result __real_##name parameters;                                                 \
  static result simulated_##name parameters;                                       \
  result __wrap_##name parameters {                                                \
    return SimulatedKernel::is_simulated() != nullptr ? simulated_##name arguments \
                                                      : __real_##name arguments;   \
  }                                                                                \
  static result simulated_##name parameters
#define SIMULATED(...) SIMULATED_IF(current, __VA_ARGS__)
#define SIMULATED_CALL(...) SIMULATED_IF(entered, __VA_ARGS__)

// The kernel needs few of the arguments.
#pragma GCC diagnostic ignored "-Wunused-parameter"
