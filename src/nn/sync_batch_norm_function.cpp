#include "nn/sync_batch_norm_function.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "nn/batch_statistics.h"

namespace lockstep::inline v0_2::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The dtype in which elements are computed.
at::ScalarType compute_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// [C] as [1, C, 1, …].
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.to(compute_dtype(input)).view(shape);
}

at::Tensor converted(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() ? tensor.to(dtype) : tensor;
}

void check(const at::Tensor& input, const NormTensors& tensors, const SyncLayer& layer) {
  if (!input.device().is_cpu() || input.layout() != at::kStrided) {
    throw InvalidArgument(concat(layer.who(), ": got an input of layout ", input.layout(), " on ",
                                 input.device(), ", expected a dense one on cpu"));
  }
  if (!input.is_floating_point()) {
    throw InvalidArgument(
        concat(layer.who(), ": got an input of ", input.dtype(), ", expected floating point"));
  }
  const auto check_one = [&](std::string_view name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.numel() != input.size(1)) {
      throw InvalidArgument(concat(layer.who(), ": got an input of sizes ", input.sizes(),
                                   ", expected ", tensor.numel(), " channels, as ", name, " has"));
    }
    const bool reduced = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
    if (tensor.scalar_type() != input.scalar_type() &&
        !(reduced && tensor.scalar_type() == at::kFloat)) {
      throw InvalidArgument(concat(layer.who(), ": got an input of ", input.dtype(), ", expected ",
                                   tensor.dtype(), " as ", name, " has"));
    }
  };
  check_one("running_mean", tensors.running_mean);
  check_one("running_var", tensors.running_var);
  check_one("weight", tensors.weight);
  check_one("bias", tensors.bias);
}

void move_running_statistics(const NormTensors& tensors, const BatchStatistics& batch,
                             double momentum) {
  const auto move = [&](const at::Tensor& running, const at::Tensor& now) {
    if (running.defined()) {
      running.copy_(running.to(at::kDouble).mul_(1 - momentum).add_(now, momentum));
    }
  };
  const auto count = static_cast<double>(batch.count);
  move(tensors.running_mean, batch.mean);
  move(tensors.running_var, batch.variance * (count / (count - 1)));
}

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& /*weight*/,
                            const std::optional<at::Tensor>& bias, const NormTensors& tensors,
                            double momentum, double eps,
                            const c10::intrusive_ptr<SyncLayer>& layer) {
    const auto batch = batch_statistics(input, *layer);
    if (batch.count == 1) {
      throw InvalidArgument(
          concat(layer->who(), ": got one value a channel over all ranks, in an input of sizes ",
                 input.sizes(), " here, expected more when training"));
    }
    if (batch.count > 0) move_running_statistics(tensors, batch, momentum);

    context->save_for_backward({input, tensors.weight, batch.mean, batch.variance});
    context->saved_data["biased"] = bias.has_value();
    context->saved_data["count"] = batch.count;
    context->saved_data["eps"] = eps;
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    if (input.numel() == 0) return at::empty_like(input);
    // With the batch's statistics given, all that is left is what evaluation does.
    const auto dtype = compute_dtype(input);
    return std::get<0>(at::native_batch_norm(
        input, converted(tensors.weight, dtype), converted(tensors.bias, dtype),
        batch.mean.to(dtype), batch.variance.to(dtype), /*training=*/false, momentum, eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& input = saved[0];
    const auto& weight = saved[1];
    const BatchStatistics batch{
        .mean = saved[2], .variance = saved[3], .count = context->saved_data["count"].toInt()};
    const auto eps = context->saved_data["eps"].toDouble();
    const auto capsule = context->saved_data["layer"].toCapsule();
    const auto& layer = static_cast<const SyncLayer&>(*capsule);
    if (at::GradMode::is_enabled()) {
      throw InvalidArgument(
          concat(layer.who(), ": got create_graph, but a gradient of its gradient is not known"));
    }

    const auto& gradient = gradients[0];
    const auto [weighted, plain] = local_sums(gradient, input, batch, eps);
    variable_list results(7);
    if (context->needs_input_grad(0)) {
      results[0] = batch.count == 0 ? at::zeros_like(input)
                                    : input_gradient(gradient, input, weight, batch, eps,
                                                     sum_over_ranks(weighted.to(at::kDouble),
                                                                    plain.to(at::kDouble), layer));
    }
    if (weight.defined()) results[1] = weighted;
    if (context->saved_data["biased"].toBool()) results[2] = plain;
    return results;
  }

 private:
  /// Over this rank's samples: of gradient · normalised input, and of the gradient.
  static std::pair<at::Tensor, at::Tensor> local_sums(const at::Tensor& gradient,
                                                      const at::Tensor& input,
                                                      const BatchStatistics& batch, double eps) {
    const auto dtype = compute_dtype(input);
    if (input.numel() == 0) {
      const auto none = at::zeros({input.size(1)}, input.options().dtype(dtype));
      return {none, none};
    }
    // An evaluation's backward: its parameters' gradients are these sums.
    auto [unused, weighted, plain] = at::native_batch_norm_backward(
        gradient, input, {}, batch.mean.to(dtype), batch.variance.to(dtype), {}, {},
        /*train=*/false, eps, {false, true, true});
    return {weighted, plain};
  }

  /// weight · k · (dy − Σ dy / count − x̂ · Σ (dy · x̂) / count), both sums over all ranks. Here x̂
  /// = (x − mean) · k, k = 1/√(variance + eps), and dy is the gradient.
  static at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input,
                                   const at::Tensor& weight, const BatchStatistics& batch,
                                   double eps, const std::pair<at::Tensor, at::Tensor>& sums) {
    const auto& [weighted, plain] = sums;
    const auto count = static_cast<double>(batch.count);
    const auto k = (batch.variance + eps).rsqrt();
    const auto scale = weight.defined() ? weight.to(at::kDouble) * k : k;
    const auto dtype = compute_dtype(input);
    const auto factor = [&](const at::Tensor& values) { return along_channels(values, input); };
    const auto centred = input.to(dtype) - factor(batch.mean);
    auto result = at::addcmul(factor(scale * plain / -count), gradient.to(dtype), factor(scale));
    result.addcmul_(centred, factor(scale * k * weighted / -count));
    return result.to(input.scalar_type());
  }
};

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& input, const NormTensors& tensors, double momentum,
                           double eps, const c10::intrusive_ptr<SyncLayer>& layer) {
  check(input, tensors, *layer);
  const auto if_any = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return SyncBatchNormFunction::apply(input, if_any(tensors.weight), if_any(tensors.bias), tensors,
                                      momentum, eps, layer);
}

}  // namespace lockstep::detail
