#include "nn/batch_statistics.h"

#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {
namespace {

/// A rank's message: these, then C means, then C sums of squared deviations; all as doubles.
enum Place : std::int64_t { place_of_count, place_of_layer, place_of_dtype, place_of_values };

at::Tensor local_statistics(const at::Tensor& input, const SyncLayer& layer) {
  const auto channels = input.size(1);
  auto row = at::zeros({place_of_values + 2 * channels}, at::kDouble);
  auto* values = row.data_ptr<double>();
  const auto count = channels > 0 ? input.numel() / channels : 0;
  values[place_of_count] = static_cast<double>(count);
  values[place_of_layer] = static_cast<double>(layer.number);
  values[place_of_dtype] = static_cast<double>(input.scalar_type());
  if (count == 0) return row;
  // LibTorch's own: the mean first, then the deviations from it, accumulated in double. It rounds
  // both to the input's dtype.
  const auto dtype = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto [mean, variance] = at::batch_norm_update_stats(input.to(dtype), {}, {}, 0);
  row.narrow(0, place_of_values, channels).copy_(mean);
  row.narrow(0, place_of_values + channels, channels).copy_(variance).mul_(count);
  return row;
}

void expect_same_layer(const double* rows, std::int64_t length, const SyncLayer& layer) {
  for (int rank = 1; rank < layer.group.size(); ++rank) {
    const auto* theirs = rows + rank * length;
    const auto differs = [&](Place place) { return theirs[place] != rows[place]; };
    if (differs(place_of_layer)) {
      throw InvalidArgument(concat(layer.who(),
                                   ": ranks must run the same layers in one order: ", "layer ",
                                   rows[place_of_layer], " of the model on rank 0; layer ",
                                   theirs[place_of_layer], " on rank ", rank));
    }
    if (differs(place_of_dtype)) {
      const auto name = [](double dtype) { return toString(static_cast<at::ScalarType>(dtype)); };
      throw InvalidArgument(
          concat(layer.who(), ": ranks must have inputs of one dtype: ", name(rows[place_of_dtype]),
                 " on rank 0; ", name(theirs[place_of_dtype]), " on rank ", rank));
    }
  }
}

}  // namespace

BatchStatistics batch_statistics(const at::Tensor& input, const SyncLayer& layer) {
  const auto channels = input.size(1);
  const auto mine = local_statistics(input, layer);
  const auto length = mine.numel();
  const auto all = at::empty({layer.group.size() * length}, at::kDouble);
  layer.group.all_gather(all, mine).wait();
  const auto* rows = all.data_ptr<double>();
  expect_same_layer(rows, length, layer);

  BatchStatistics batch{.mean = at::zeros({channels}, at::kDouble),
                        .variance = at::zeros({channels}, at::kDouble),
                        .count = 0};
  auto* mean = batch.mean.data_ptr<double>();
  auto* deviations = batch.variance.data_ptr<double>();
  double count = 0;
  for (int rank = 0; rank < layer.group.size(); ++rank) {
    const auto* theirs = rows + rank * length;
    const double more = theirs[place_of_count];
    if (more == 0) continue;
    const double share = more / (count + more);
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      const double distance = theirs[place_of_values + channel] - mean[channel];
      mean[channel] += distance * share;
      deviations[channel] +=
          theirs[place_of_values + channels + channel] + distance * distance * count * share;
    }
    count += more;
  }
  batch.count = static_cast<std::int64_t>(count);
  if (batch.count > 0) batch.variance.div_(count);
  return batch;
}

std::pair<at::Tensor, at::Tensor> sum_over_ranks(const at::Tensor& a, const at::Tensor& b,
                                                 const SyncLayer& layer) {
  const auto number = static_cast<double>(layer.number);
  const auto sums = at::cat(
      {a, b, at::full({1}, number, at::kDouble), at::full({1}, number * number, at::kDouble)});
  layer.group.all_reduce(sums).wait();
  // Numbers are all equal if, and only if, their variance is zero; these are exact.
  const auto* last = sums.data_ptr<double>() + a.numel() + b.numel();
  if (last[0] * last[0] != last[1] * layer.group.size()) {
    throw InvalidArgument(
        concat(layer.who(),
               ": ranks must run the same layers in one order: another rank is in "
               "another layer's backward"));
  }
  return {sums.narrow(0, 0, a.numel()), sums.narrow(0, a.numel(), b.numel())};
}

}  // namespace lockstep::detail
