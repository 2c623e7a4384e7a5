// A stand-in for NCCL that has a version, that of FAKE_NCCL_VERSION.

#include <cstdlib>

extern "C" int ncclGetVersion(int* version) {
  const char* text = std::getenv("FAKE_NCCL_VERSION");
  if (text == nullptr) return 1;
  *version = std::atoi(text);
  return 0;
}
