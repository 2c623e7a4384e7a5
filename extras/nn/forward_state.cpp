#include "extras/nn/forward_state.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <mutex>

namespace lockstep::inline v0_2::detail {

RandomState::RandomState(const std::vector<at::Generator>& generators) {
  for (auto generator : generators) {
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

void RandomState::restore() const {
  for (auto [generator, state] : states_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

std::vector<at::Generator> RandomState::generators() const {
  std::vector<at::Generator> generators;
  for (const auto& [generator, state] : states_) generators.push_back(generator);
  return generators;
}

AutocastState::AutocastState() {
  std::ranges::transform(devices, states_.begin(), [](at::DeviceType device) {
    return OfDevice{.enabled = at::autocast::is_autocast_enabled(device),
                    .dtype = at::autocast::get_autocast_dtype(device)};
  });
}

void AutocastState::restore() const {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    at::autocast::set_autocast_enabled(devices[i], states_[i].enabled);
    at::autocast::set_autocast_dtype(devices[i], states_[i].dtype);
  }
}

BufferState::BufferState(const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  for (const auto& buffer : buffers) {
    if (!buffer.defined()) continue;
    values_.push_back(
        {.buffer = buffer,
         .copy = buffer.clone(),
         .version = buffer.unsafeGetTensorImpl()->version_counter().current_version()});
  }
}

void BufferState::forget_unchanged() {
  std::erase_if(values_, [](const Value& value) {
    return value.buffer.is_cpu() && at::equal(value.buffer, value.copy);
  });
}

void BufferState::restore() const {
  const at::NoGradGuard no_grad;
  // Equal versions mean equal values, as in a forward that is not recomputed. So a graph that saved
  // the buffer refuses exactly the values that another forward has changed.
  for (const auto& [buffer, copy, version] : values_) {
    buffer.variable_data().copy_(copy);
    auto counter = buffer.unsafeGetTensorImpl()->version_counter();
    counter.set_version(version);
  }
}

std::vector<at::Tensor> BufferState::buffers() const {
  std::vector<at::Tensor> buffers;
  for (const auto& value : values_) buffers.push_back(value.buffer);
  return buffers;
}

ForwardStateScope::ForwardStateScope(const ForwardState& state)
    : before_{.random = RandomState(state.random.generators()),
              .autocast = {},
              .buffers = BufferState(state.buffers.buffers())} {
  // Casts of parameters that the forward caches must not outlive it, because an optimizer may
  // change the parameters.
  at::autocast::increment_nesting();
  state.restore();
}

ForwardStateScope::~ForwardStateScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  before_.restore();
}

}  // namespace lockstep::detail
