// The functions of nccl_double.h for a program that does not link the double. Linked, the double's
// NCCL functions would replace those that the real NCCL calls in itself.
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "tests/device/simulation/nccl_double.h"

namespace {

template <class Function>
Function* find(const char* name, Function* /*type*/) {
  static void* const library = ::dlopen(LOCKSTEP_NCCL_DOUBLE, RTLD_NOW | RTLD_LOCAL);
  void* const found = library != nullptr ? ::dlsym(library, name) : nullptr;
  if (found == nullptr) {
    throw std::runtime_error(std::string("got no ") + name + " from " LOCKSTEP_NCCL_DOUBLE);
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

const char* nccl_double_take_faults() { return find(__func__, &nccl_double_take_faults)(); }
void nccl_double_fail(int operation, int result) {
  find(__func__, &nccl_double_fail)(operation, result);
}
void nccl_double_fail_rank(int rank, int operation, int result) {
  find(__func__, &nccl_double_fail_rank)(rank, operation, result);
}
void nccl_double_slow_init(int polls) { find(__func__, &nccl_double_slow_init)(polls); }
void nccl_double_slow_groups(int polls) { find(__func__, &nccl_double_slow_groups)(polls); }
void nccl_double_set_version(int version) { find(__func__, &nccl_double_set_version)(version); }
