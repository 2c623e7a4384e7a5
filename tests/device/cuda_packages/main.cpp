// What tools/check-cuda-packages looks at in a process that links a LibTorch with CUDA. Prints a
// line for each fact, as "name: value".
#include <ATen/Context.h>
#include <dlfcn.h>
#include <torch/cuda.h>

#include <exception>
#include <iostream>
#include <string>

#include "device/nccl_library.h"
#include "lockstep/device_group.h"
#include "lockstep/init.h"

int nccl_header_version();

namespace {

using namespace lockstep;

/// "none", or the error's text.
template <class Fn>
std::string error_of(const Fn& fn) {
  try {
    fn();
    return "none";
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// What the library does without a driver: its id, and the first call that needs a GPU.
void try_library() {
  const auto& library = device::NcclLibrary::get();
  std::cout << "library: " << library.version() << '\n';
  device::nccl::UniqueId id{};
  std::cout << "id: " << library.get_error_string(library.get_unique_id(&id)) << '\n';
  device::nccl::Comm* comm = nullptr;
  device::nccl::Config config;
  const auto result = library.comm_init_rank_config(&comm, 1, id, 0, &config);
  std::cout << "communicator: " << library.get_error_string(result) << '\n';
}

}  // namespace

int main() {
  std::cout << "header: " << nccl_header_version() << '\n';
  const auto loaded = [](const char* name) {
    return ::dlopen(name, RTLD_NOLOAD | RTLD_LAZY) != nullptr ? "loaded" : "not loaded";
  };
  std::cout << "libtorch_cuda: " << loaded("libtorch_cuda.so") << '\n';
  std::cout << "libnccl: " << loaded("libnccl.so.2") << '\n';
  std::cout << "at::hasCUDA: " << at::hasCUDA() << '\n';
  std::cout << "torch::cuda::device_count: " << static_cast<int>(torch::cuda::device_count())
            << '\n';
  const auto error = error_of(try_library);
  std::cout << "library error: " << error << '\n';
  const Group world = init();
  for (const auto backend : {DeviceBackend::nccl, DeviceBackend::staged}) {
    const auto refused = [&] {
      (void)device_group(world, at::Device(at::kCUDA, 0), {.backend = backend});
    };
    const char* const name = backend == DeviceBackend::nccl ? "nccl group: " : "staged group: ";
    std::cout << name << error_of(refused) << '\n';
  }
}
