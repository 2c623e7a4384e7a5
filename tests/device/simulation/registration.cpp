#include <ATen/Parallel.h>
#include <ATen/Utils.h>

#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>
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

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    register_accelerator();
    register_operators();
    at::set_num_threads(1);
  });
}

namespace {

/// A program that does not know the simulated devices gets them by LD_PRELOAD and
/// LOCKSTEP_SIMULATION=1. It ends with 1 if it has accessed memory that no event orders.
const bool is_preloaded = [] {
  const char* const text = std::getenv("LOCKSTEP_SIMULATION");
  if (text == nullptr || *text != '1') return false;
  install();
  std::atexit([] {
    const auto races = take_races();
    for (const auto& race : races) std::cerr << race << '\n';
    if (!races.empty()) std::_Exit(1);
  });
  return true;
}();

}  // namespace

c10::DeviceType device_type() { return accelerator_type; }
const char* type_name() { return accelerator_type == c10::DeviceType::CUDA ? "cuda" : "sim"; }

}  // namespace lockstep::simulation
