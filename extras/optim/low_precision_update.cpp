#include "extras/optim/low_precision_update.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "group/tensors.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// Elements that are converted, updated and rounded while they are in the second-level cache.
constexpr std::int64_t chunk_length = 32 << 10;

std::uint16_t* halves_of(const at::Tensor& tensor) {
  return static_cast<std::uint16_t*>(tensor.mutable_data_ptr());
}

std::span<float> floats_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

/// The elements of a dense tensor in the order of memory.
at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

/// The same values without a lazy negative: LibTorch's copy of float16 to float32 drops its sign.
at::Tensor in_layout_of(const at::Tensor& parameter, const at::Tensor& tensor,
                        at::ScalarType dtype) {
  if (tensor.sizes() == parameter.sizes() && tensor.strides() == parameter.strides() &&
      tensor.scalar_type() == dtype && has_values_in_memory(tensor))
    return tensor;
  return at::empty_like(parameter, parameter.options().dtype(dtype)).copy_(tensor.resolve_neg());
}

}  // namespace

void LowPrecisionUpdate::run(
    const std::function<void(const ElementwiseOptimizer::Elements&)>& kernel) const {
  // Each write of a part must not count as a change of the parameter.
  const at::AutoDispatchBelowADInplaceOrView no_versions;
  const bool is_first = !state.empty() && !state.front()->defined();
  const auto keep = [&](at::Tensor& tensor, at::ScalarType dtype, bool zero) {
    if (!tensor.defined() && zero)
      tensor = at::zeros_like(parameter, parameter.options().dtype(dtype));
    else
      tensor = in_layout_of(parameter, tensor.defined() ? tensor : parameter, dtype);
    return flat(tensor);
  };
  const auto parameters = flat(parameter);
  const auto gradients = flat(in_layout_of(parameter, gradient, gradient.scalar_type()));
  std::vector<at::Tensor> states;
  for (auto* tensor : state) states.push_back(keep(*tensor, state_dtype, true));
  at::Tensor masters;
  at::Tensor compensation;
  if (mode == LowPrecision::master) masters = keep(fields->master_param, at::kFloat, false);
  if (mode == LowPrecision::kahan)
    compensation = keep(fields->kahan_comp, parameter.scalar_type(), true);

  const auto rows = static_cast<std::int64_t>(2 + states.size());
  const auto length = std::min(chunk_length, parameters.numel());
  const auto buffers = at::empty({rows, length}, parameters.options().dtype(at::kFloat));
  for (std::int64_t begin = 0; begin < parameters.numel(); begin += length) {
    const auto count = std::min(length, parameters.numel() - begin);
    const auto in = [&](const at::Tensor& tensor) { return tensor.narrow(0, begin, count); };
    const auto buffer = [&](std::int64_t row) { return buffers[row].narrow(0, 0, count); };
    const auto of_parameter = in(parameters);
    ElementwiseOptimizer::Elements elements{.values = {},
                                            .gradient = buffer(0).copy_(in(gradients)),
                                            .state = {},
                                            .is_first = is_first};

    switch (mode) {
      case LowPrecision::master:
        elements.values = in(masters);
        kernels::refresh_masters(parameter.scalar_type() == at::kHalf ? DType::f16 : DType::bf16,
                                 halves_of(of_parameter), floats_of(elements.values));
        break;
      case LowPrecision::kahan:
        elements.values = buffer(1);
        kernels::add_compensation(halves_of(of_parameter), halves_of(in(compensation)),
                                  floats_of(elements.values));
        break;
      default:
        elements.values = buffer(1).copy_(of_parameter);
    }
    for (std::size_t k = 0; k < states.size(); ++k) {
      const auto of_state = in(states[k]);
      elements.state.push_back(state_dtype == at::kFloat
                                   ? of_state
                                   : buffer(2 + static_cast<std::int64_t>(k)).copy_(of_state));
    }

    kernel(elements);

    const auto round = [&](const at::Tensor& values, std::size_t tensor, const at::Tensor& to) {
      auto numbers = stream;
      numbers.tensor = static_cast<std::uint32_t>(tensor);
      kernels::round_stochastically(floats_of(values), numbers,
                                    first + static_cast<std::size_t>(begin), halves_of(to));
    };
    switch (mode) {
      case LowPrecision::master:
        of_parameter.copy_(elements.values);
        break;
      case LowPrecision::kahan:
        kernels::round_with_compensation(floats_of(elements.values), halves_of(of_parameter),
                                         halves_of(in(compensation)));
        break;
      default:
        round(elements.values, 0, of_parameter);
    }
    if (state_dtype == at::kFloat) continue;
    for (std::size_t k = 0; k < states.size(); ++k) round(elements.state[k], 1 + k, in(states[k]));
  }
  parameter.unsafeGetTensorImpl()->bump_version();
}

}  // namespace lockstep::detail
