#include <ATen/Utils.h>

#include <mutex>
#include <vector>

#include "tests/device/simulation/accelerator.h"

namespace lockstep::simulation {

const at::Generator& device_generator(int device) {
  static auto* const all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int i = 0; i < devices; ++i) made->push_back(at::detail::createCPUGenerator());
    return made;
  }();
  return all->at(static_cast<std::size_t>(device));
}

at::Generator next_generator(at::Generator source) {
  const std::lock_guard lock(source.mutex());
  return at::detail::createCPUGenerator(
      at::check_generator<at::CPUGeneratorImpl>(source)->random64());
}

}  // namespace lockstep::simulation
