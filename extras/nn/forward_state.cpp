#include "extras/nn/forward_state.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <mutex>

namespace lockstep::inline v0_2::detail {

ForwardState::ForwardState(const std::vector<at::Generator>& generators,
                           const std::vector<at::Tensor>& buffers) {
  for (auto generator : generators) {
    const std::lock_guard lock(generator.mutex());
    random_.emplace_back(generator, generator.get_state());
  }
  std::ranges::transform(devices, autocast_.begin(), [](at::DeviceType device) {
    return Autocast{.enabled = at::autocast::is_autocast_enabled(device),
                    .dtype = at::autocast::get_autocast_dtype(device)};
  });
  const at::NoGradGuard no_grad;
  for (const auto& buffer : buffers) {
    if (!buffer.defined()) continue;
    buffers_.push_back(
        {.buffer = buffer,
         .copy = buffer.clone(),
         .version = buffer.unsafeGetTensorImpl()->version_counter().current_version()});
  }
}

void ForwardState::forget_unchanged_buffers() {
  std::erase_if(buffers_, [](const Buffer& value) {
    return value.buffer.is_cpu() && at::equal(value.buffer, value.copy);
  });
}

void ForwardState::restore() const {
  for (auto [generator, state] : random_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    at::autocast::set_autocast_enabled(devices[i], autocast_[i].enabled);
    at::autocast::set_autocast_dtype(devices[i], autocast_[i].dtype);
  }
  const at::NoGradGuard no_grad;
  // Equal versions mean equal values, as in a forward that is not recomputed. So a graph that saved
  // the buffer refuses exactly the values that another forward has changed.
  for (const auto& [buffer, copy, version] : buffers_) {
    buffer.variable_data().copy_(copy);
    auto counter = buffer.unsafeGetTensorImpl()->version_counter();
    counter.set_version(version);
  }
}

ForwardState ForwardState::current() const {
  std::vector<at::Generator> generators;
  for (const auto& [generator, state] : random_) generators.push_back(generator);
  std::vector<at::Tensor> buffers;
  for (const auto& value : buffers_) buffers.push_back(value.buffer);
  return {generators, buffers};
}

}  // namespace lockstep::detail
