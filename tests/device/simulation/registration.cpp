#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>

#include "tests/device/simulation/accelerator.h"
#include "tests/device/simulation/operators.h"

namespace lockstep::simulation {

void register_operators() {
  using torch::CppFunction;
  constexpr auto key = accelerator_key;
  // Never destroyed: autograd's threads may outlive static objects.
  auto& aten = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  auto& all = *new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  aten.impl("empty.memory_format", TORCH_FN(operators::empty));
  aten.impl("empty_strided", TORCH_FN(operators::empty_strided));
  aten.impl("as_strided", TORCH_FN(operators::as_strided));
  aten.impl("view", TORCH_FN(operators::view));
  aten.impl("_reshape_alias", TORCH_FN(operators::reshape_alias));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(operators::set_storage));
  aten.impl("set_.source_Tensor", TORCH_FN(operators::set_tensor));
  aten.impl("set_", TORCH_FN(operators::set_empty));
  aten.impl("resize_", TORCH_FN(operators::resize));
  aten.impl("copy_", TORCH_FN(operators::copy));
  aten.impl("_local_scalar_dense", TORCH_FN(operators::item));
  aten.impl("record_stream", TORCH_FN(operators::record_stream));
  aten.impl("native_dropout", TORCH_FN(operators::native_dropout));
  aten.impl("_fused_sdp_choice", TORCH_FN(operators::attention_choice));
#if !LOCKSTEP_SIMULATED_CUDA
  aten.impl("convolution_overrideable",
            CppFunction::makeFromBoxedFunction<&operators::convolution>());
  aten.impl("convolution_backward_overrideable",
            CppFunction::makeFromBoxedFunction<&operators::convolution_backward>());
#endif
  aten.impl("_has_compatible_shallow_copy_type", TORCH_FN(operators::may_share_data));
  // LibTorch composes these of others on a device that has no kernel. A GPU has one.
  const auto one_kernel = [&aten](const std::string& name) {
    aten.impl(name.c_str(), CppFunction::makeFromBoxedFunction<&operators::fallback>());
  };
#if LOCKSTEP_SIMULATED_CUDA
  // LibTorch would choose between libraries of CUDA.
  one_kernel("convolution");
  one_kernel("convolution_backward");
#endif
  for (const char* name : {"index.Tensor", "native_layer_norm", "native_layer_norm_backward",
                           "native_group_norm", "native_group_norm_backward"}) {
    one_kernel(name);
  }
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!op.name.starts_with("aten::_foreach_")) continue;
    if (op.overload_name.find("out") != std::string::npos) continue;
    one_kernel(op.name.substr(6) + (op.overload_name.empty() ? "" : "." + op.overload_name));
  }
  all.fallback(CppFunction::makeFromBoxedFunction<&operators::fallback>());
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
