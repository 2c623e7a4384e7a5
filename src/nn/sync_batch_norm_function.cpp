#include "nn/sync_batch_norm_function.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <any>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/sync_batch_norm.h"
#include "nn/recomputed_segment.h"

namespace lockstep::inline v0_2::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class... Parts>
[[noreturn]] void refuse_in_layer(const SyncLayer& layer, const Parts&... what) {
  throw InvalidArgument(concat(layer.prefix(), ": ", what...), {.operation = "SyncBatchNorm"});
}

/// Fields of a rank's header, of doubles.
enum Field : std::int64_t { field_count, field_layer, field_dtype, header_fields };

/// Number of values of each channel in the input.
std::int64_t count_of(const at::Tensor& input) {
  const auto channels = input.size(1);
  return channels > 0 ? input.numel() / channels : 0;
}

at::Tensor header_of(const at::Tensor& input, const SyncLayer& layer) {
  auto header = at::empty({header_fields}, at::kDouble);
  auto* values = header.data_ptr<double>();
  values[field_count] = static_cast<double>(count_of(input));
  values[field_layer] = static_cast<double>(layer.number);
  values[field_dtype] = static_cast<double>(input.scalar_type());
  return header;
}

/// The dtype in which elements are computed.
at::ScalarType compute_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// C means and C sums of squared deviations, of this rank's values, in double.
at::Tensor local_statistics(const at::Tensor& input) {
  const auto channels = input.size(1);
  auto row = at::zeros({2 * channels}, input.options().dtype(at::kDouble));
  const auto count = count_of(input);
  if (count == 0) return row;
  // Computes the mean and then the deviations from it, in double, and rounds both to the input's
  // dtype.
  const auto [mean, variance] =
      at::batch_norm_update_stats(input.to(compute_dtype(input)), {}, {}, 0);
  row.narrow(0, 0, channels).copy_(mean);
  row.narrow(0, channels, channels).copy_(variance).mul_(count);
  return row;
}

/// The headers of all ranks, on the host, and their statistics.
/// Shapes: [ranks, header_fields] and [ranks, 2 C].
struct RankStatistics {
  at::Tensor headers;
  at::Tensor values;
};

RankStatistics gather_statistics(const at::Tensor& input, const SyncLayer& layer) {
  const auto header = header_of(input, layer);
  const auto values = local_statistics(input);
  const std::int64_t ranks = layer.group.size();
  if (input.is_cpu()) {
    const auto all = at::empty({ranks, header_fields + values.numel()}, at::kDouble);
    layer.group.all_gather(all, at::cat({header, values})).wait();
    return {.headers = all.narrow(1, 0, header_fields).contiguous(),
            .values = all.narrow(1, header_fields, values.numel())};
  }
  // The host reads the headers, and does not wait for the device.
  RankStatistics all{.headers = at::empty({ranks, header_fields}, at::kDouble),
                     .values = at::empty({ranks, values.numel()}, values.options())};
  auto work = layer.group.all_gather(all.values, values);
  layer.group.host().all_gather(all.headers, header).wait();
  work.wait();
  return all;
}

void expect_same_layer(const double* rows, const SyncLayer& layer) {
  for (int rank = 1; rank < layer.group.size(); ++rank) {
    const auto* theirs = rows + rank * header_fields;
    const auto differs = [&](Field field) { return theirs[field] != rows[field]; };
    if (differs(field_layer)) {
      refuse_in_layer(layer, "ranks must run the same layers in the same order: ", "layer ",
                      rows[field_layer], " of the model on rank 0; layer ", theirs[field_layer],
                      " on rank ", rank);
    }
    if (differs(field_dtype)) {
      const auto name = [](double dtype) { return toString(static_cast<at::ScalarType>(dtype)); };
      refuse_in_layer(layer, "ranks must have inputs of the same dtype: ", name(rows[field_dtype]),
                      " on rank 0; ", name(theirs[field_dtype]), " on rank ", rank);
    }
  }
}

/// Statistics of a batch over all ranks. Bitwise equal on every rank.
struct BatchStatistics {
  at::Tensor mean;      ///< double [C]
  at::Tensor variance;  ///< double [C], divided by count
  std::int64_t count;   ///< values per channel over all ranks
};

/// Statistics of an input [N, C, …] over all ranks. A rank's part may be empty. Gathers each rank's
/// count, mean and sum of squared deviations, and combines them in rank order.
///
/// Ranks: all of the layer's group.
/// Throws: InvalidArgument, on every rank, when ranks are in different layers, or have inputs of
/// different dtypes.
/// Source: Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample
/// variances, 1979.
BatchStatistics batch_statistics(const at::Tensor& input, const SyncLayer& layer) {
  const auto channels = input.size(1);
  const auto [headers, values] = gather_statistics(input, layer);
  const auto* rows = headers.data_ptr<double>();
  expect_same_layer(rows, layer);

  const auto options = input.options().dtype(at::kDouble);
  BatchStatistics batch{.mean = at::zeros({channels}, options),
                        .variance = at::zeros({channels}, options),
                        .count = 0};
  auto& deviations = batch.variance;
  double count = 0;
  for (int rank = 0; rank < layer.group.size(); ++rank) {
    const double rank_count = rows[rank * header_fields + field_count];
    if (rank_count == 0) continue;
    const double share = rank_count / (count + rank_count);
    const auto theirs = values[rank];
    const auto distance = theirs.narrow(0, 0, channels) - batch.mean;
    batch.mean.add_(distance * share);
    deviations.add_(theirs.narrow(0, channels, channels) + distance * distance * count * share);
    count += rank_count;
  }
  batch.count = static_cast<std::int64_t>(count);
  if (batch.count > 0) batch.variance.div_(count);
  return batch;
}

/// Sums two tensors of doubles [C] over ranks, in rank order.
/// Ranks: all of the layer's group.
/// Throws: InvalidArgument, on every rank, when ranks are in different layers.
std::pair<at::Tensor, at::Tensor> sum_over_ranks(const at::Tensor& a, const at::Tensor& b,
                                                 const SyncLayer& layer) {
  const auto number = static_cast<double>(layer.number);
  const auto sums = at::cat(
      {a, b, at::full({1}, number, a.options()), at::full({1}, number * number, a.options())});
  layer.group.all_reduce(sums).wait();
  // To read the device's memory, every layer would wait for the device.
  if (sums.is_cpu()) {
    // The numbers are equal on all ranks if, and only if, their variance is zero. Doubles represent
    // these sums exactly.
    const auto* last = sums.data_ptr<double>() + a.numel() + b.numel();
    if (last[0] * last[0] != last[1] * layer.group.size()) {
      refuse_in_layer(layer,
                      "ranks must run the same layers in the same order: another rank is in "
                      "another layer's backward");
    }
  }
  return {sums.narrow(0, 0, a.numel()), sums.narrow(0, a.numel(), b.numel())};
}

/// Reshapes [C] to [1, C, 1, …].
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.to(compute_dtype(input)).view(shape);
}

at::Tensor converted(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() ? tensor.to(dtype) : tensor;
}

void check(const at::Tensor& input, const NormTensors& tensors, const SyncLayer& layer) {
  if (input.device() != layer.group.device() || input.layout() != at::kStrided) {
    refuse_in_layer(layer, "got an input of layout ", input.layout(), " on ", input.device(),
                    ", expected a dense one on ", layer.group.device());
  }
  if (!input.is_floating_point()) {
    refuse_in_layer(layer, "got an input of ", input.dtype(), ", expected a floating point dtype");
  }
  const auto check_one = [&](std::string_view name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.numel() != input.size(1)) {
      refuse_in_layer(layer, "got an input of sizes ", input.sizes(), ", expected ", tensor.numel(),
                      " channels, as ", name, " has");
    }
    const bool reduced = input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16;
    if (tensor.scalar_type() != input.scalar_type() &&
        !(reduced && tensor.scalar_type() == at::kFloat)) {
      refuse_in_layer(layer, "got an input of ", input.dtype(), ", expected ", tensor.dtype(),
                      " as ", name, " has");
    }
  };
  check_one("running_mean", tensors.running_mean);
  check_one("running_var", tensors.running_var);
  check_one("weight", tensors.weight);
  check_one("bias", tensors.bias);
}

void update_running_statistics(const NormTensors& tensors, const BatchStatistics& batch,
                               double momentum) {
  const auto update = [&](const at::Tensor& running, const at::Tensor& of_batch) {
    if (running.defined()) {
      running.copy_(running.to(at::kDouble).mul_(1 - momentum).add_(of_batch, momentum));
    }
  };
  const auto count = static_cast<double>(batch.count);
  update(tensors.running_mean, batch.mean);
  update(tensors.running_var, batch.variance * (count / (count - 1)));
}

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& /*weight*/,
                            const std::optional<at::Tensor>& bias, const NormTensors& tensors,
                            double momentum, double eps,
                            const c10::intrusive_ptr<SyncLayer>& layer) {
    const auto batch = std::any_cast<BatchStatistics>(
        once_per_forward([&] { return std::any(batch_statistics(input, *layer)); }));
    if (batch.count == 1) {
      refuse_in_layer(*layer, "got one value per channel over all ranks, in an input of sizes ",
                      input.sizes(), " on this rank, expected at least two when training");
    }
    if (batch.count > 0 && !is_recomputing()) update_running_statistics(tensors, batch, momentum);

    context->save_for_backward({input, tensors.weight, batch.mean, batch.variance});
    context->saved_data["biased"] = bias.has_value();
    context->saved_data["count"] = batch.count;
    context->saved_data["eps"] = eps;
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    if (input.numel() == 0) return at::empty_like(input);
    // Evaluation mode normalises with the given statistics.
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
      refuse_in_layer(layer, "got create_graph, but the second derivative is not implemented");
    }

    const auto& gradient = gradients[0];
    const auto [product_sum, gradient_sum] = local_sums(gradient, input, batch, eps);
    variable_list results(7);
    if (context->needs_input_grad(0)) {
      results[0] = batch.count == 0
                       ? at::zeros_like(input)
                       : input_gradient(gradient, input, weight, batch, eps,
                                        sum_over_ranks(product_sum.to(at::kDouble),
                                                       gradient_sum.to(at::kDouble), layer));
    }
    if (weight.defined()) results[1] = product_sum;
    if (context->saved_data["biased"].toBool()) results[2] = gradient_sum;
    return results;
  }

 private:
  /// Σ (gradient · normalised input) and Σ gradient over this rank's samples.
  static std::pair<at::Tensor, at::Tensor> local_sums(const at::Tensor& gradient,
                                                      const at::Tensor& input,
                                                      const BatchStatistics& batch, double eps) {
    const auto dtype = compute_dtype(input);
    if (input.numel() == 0) {
      const auto none = at::zeros({input.size(1)}, input.options().dtype(dtype));
      return {none, none};
    }
    // The parameter gradients of evaluation mode are these sums. They do not depend on the weight,
    // but CUDA's kernel needs one, and statistics of the batch, which may be empty.
    const auto mean = batch.mean.to(dtype);
    const auto none = at::empty({0}, mean.options());
    auto [unused, product_sum, gradient_sum] = at::native_batch_norm_backward(
        gradient, input, /*weight=*/mean, mean, batch.variance.to(dtype), none, none,
        /*train=*/false, eps, {false, true, true});
    return {product_sum, gradient_sum};
  }

  /// weight · k · (dy − Σ dy / count − x̂ · Σ (dy · x̂) / count), both sums over all ranks. Here x̂
  /// = (x − mean) · k, k = 1/√(variance + eps), and dy is the gradient.
  static at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input,
                                   const at::Tensor& weight, const BatchStatistics& batch,
                                   double eps, const std::pair<at::Tensor, at::Tensor>& sums) {
    const auto& [product_sum, gradient_sum] = sums;
    const auto count = static_cast<double>(batch.count);
    const auto k = (batch.variance + eps).rsqrt();
    const auto scale = weight.defined() ? weight.to(at::kDouble) * k : k;
    const auto dtype = compute_dtype(input);
    const auto factor = [&](const at::Tensor& values) { return along_channels(values, input); };
    const auto centred = input.to(dtype) - factor(batch.mean);
    auto result =
        at::addcmul(factor(scale * gradient_sum / -count), gradient.to(dtype), factor(scale));
    result.addcmul_(centred, factor(scale * k * product_sum / -count));
    return result.to(input.scalar_type());
  }
};

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& input, const NormTensors& tensors, double momentum,
                           double eps, const c10::intrusive_ptr<SyncLayer>& layer) {
  check(input, tensors, *layer);
  const auto optional_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return SyncBatchNormFunction::apply(input, optional_of(tensors.weight), optional_of(tensors.bias),
                                      tensors, momentum, eps, layer);
}

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

std::string detail::SyncLayer::prefix() const {
  return concat("SyncBatchNorm ", name, name.empty() ? "" : " ", "rank ", group.rank(), " of ",
                group.size());
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_,
                                     const Group& group)
    : BatchNormImplBase(options_), layer_(c10::make_intrusive<detail::SyncLayer>(group)) {}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  // Without running statistics, evaluation uses those of this rank's batch, without a collective.
  if (!is_training()) return BatchNormImplBase::forward(input);
  _check_input_dim(input);
  double momentum = options.momentum().value_or(0);
  if (num_batches_tracked.defined()) {
    if (!detail::is_recomputing()) num_batches_tracked += 1;
    if (!options.momentum()) momentum = 1 / num_batches_tracked.item<double>();
  }
  return detail::sync_batch_norm(
      input,
      {.weight = weight, .bias = bias, .running_mean = running_mean, .running_var = running_var},
      momentum, options.eps(), layer_);
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  const bool fits = input.dim() >= 2 && input.dim() <= 5;
  if (!fits || input.size(1) != options.num_features()) {
    detail::refuse_in_layer(*layer_, "got an input of sizes ", input.sizes(),
                            ", expected 2 to 5 dimensions, the second of ", options.num_features(),
                            " channels");
  }
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  const auto& momentum = options.momentum();
  stream << std::boolalpha << "lockstep::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps()
         << ", momentum=" << (momentum ? detail::concat(*momentum) : "None")
         << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats()
         << ", ranks=" << group().size() << ")";
}

}  // namespace lockstep
