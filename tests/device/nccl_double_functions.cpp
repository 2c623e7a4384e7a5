// nccl_double() for a program that does not link the double. Linked, the double's NCCL functions
// would replace those that the real NCCL calls in itself.
#include <dlfcn.h>

#include <stdexcept>

#include "tests/device/simulation/nccl_double.h"

lockstep::simulation::NcclDouble* nccl_double() {
  static void* const library = ::dlopen(LOCKSTEP_NCCL_DOUBLE, RTLD_NOW | RTLD_LOCAL);
  void* const found = library != nullptr ? ::dlsym(library, __func__) : nullptr;
  if (found == nullptr) throw std::runtime_error("got no double from " LOCKSTEP_NCCL_DOUBLE);
  return reinterpret_cast<decltype(&nccl_double)>(found)();
}
