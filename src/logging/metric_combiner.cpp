#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "comm/communicator.h"
#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/error.h"
#include "lockstep/metrics.h"

// One all_reduce with the sum of float64 elements combines all states. A float64 is one element, an
// int64 two halves, an ExactSum its digits. A minimum or maximum has one element per rank, which is
// zero on all other ranks. All sums are exact, except those of float64 values.

namespace lockstep::inline v0_2 {

namespace {

constexpr int half_bits = 32;
constexpr std::int64_t half_mask = 0xffffffff;

/// The first two elements are the hash h of the layout and h². N · Σ h² = (Σ h)² holds only if all
/// ranks have the same hash. The hash is short enough for exact squares.
constexpr std::size_t header = 2;
constexpr std::uint64_t hash_mask = (1 << 16) - 1;

constexpr std::uint64_t hash_start = 14695981039346656037U;

/// One step of FNV-1a.
std::uint64_t hash(std::uint64_t previous, std::uint64_t value) {
  return (previous ^ value) * 1099511628211U;
}

void expect_same_layout(std::span<const double> sums, int ranks) {
  if (ranks * sums[1] == sums[0] * sums[0]) return;
  detail::throw_invalid(
      "compute",
      "got metrics whose states differ between ranks, expected the same metrics in the "
      "same order on every rank. Construct states with their final shapes.");
}

template <class T>
std::span<T> state_of(const at::Tensor& values) {
  return {values.mutable_data_ptr<T>(), static_cast<std::size_t>(values.numel())};
}

}  // namespace

void MetricCombiner::part(std::string_view kind, at::IntArrayRef sizes) {
  if (combined_) return;
  for (const char c : kind) layout_ = hash(layout_, static_cast<unsigned char>(c));
  layout_ = hash(layout_, sizes.size());
  for (const auto size : sizes) layout_ = hash(layout_, static_cast<std::uint64_t>(size));
}

void MetricCombiner::exchange(double& value) {
  if (!combined_) {
    values_.push_back(value);
    return;
  }
  if (next_ == values_.size()) {
    detail::throw_invalid(
        "compute",
        "a metric's combine() passed more values on its second call than on its first. Pass the "
        "same values on every call.");
  }
  value = values_[next_++];
}

void MetricCombiner::exchange(std::int64_t& value) {
  auto high = static_cast<double>(value >> half_bits);
  auto low = static_cast<double>(value & half_mask);
  exchange(high);
  exchange(low);
  if (!combined_) return;
  const auto whole_low = static_cast<std::int64_t>(low);
  const auto whole_high = static_cast<std::int64_t>(high) + (whole_low >> half_bits);
  constexpr std::int64_t limit = std::int64_t{1} << (half_bits - 1);
  if (whole_high < -limit || whole_high >= limit) {
    detail::throw_invalid(
        "compute",
        "got a sum over ranks outside the range of int64. Use a Sum, or a float64 state.");
  }
  value = whole_high * (half_mask + 1) + (whole_low & half_mask);
}

template <class T>
void MetricCombiner::pick(T& value, Extreme extreme) {
  const T own = value;
  for (int rank = 0; rank < size_; ++rank) {
    T other = rank == rank_ ? own : T{};
    exchange(other);
    if (!combined_) continue;
    if (rank == 0) {
      value = other;
    } else if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(value)) continue;
      if (std::isnan(other)) value = other;
    }
    value = extreme == Extreme::min ? std::min(value, other) : std::max(value, other);
  }
}

template <class Combine>
void MetricCombiner::each(at::Tensor& values, std::string_view kind, const Combine& combine) {
  if (!values.defined() || values.layout() != at::kStrided ||
      (values.scalar_type() != at::kDouble && values.scalar_type() != at::kLong)) {
    detail::throw_invalid("compute", "got a state that is ",
                          values.defined()
                              ? detail::concat("a tensor of ", values.scalar_type(),
                                               values.layout() == at::kStrided ? "" : ", not dense")
                              : "an undefined tensor",
                          ", expected a dense tensor of float64 (Double) or int64 (Long)");
  }
  const bool floats = values.scalar_type() == at::kDouble;
  part(kind, values.sizes());
  part(floats ? "float64" : "int64", {});
  // A copy, because a copied metric shares its tensors with the original.
  at::Tensor result = at::empty(values.sizes(), values.options().device(at::kCPU));
  result.copy_(values.detach());
  if (floats) {
    for (auto& value : state_of<double>(result)) combine(value);
  } else {
    for (auto& value : state_of<std::int64_t>(result)) combine(value);
  }
  if (combined_) values = result.to(values.device());
}

void MetricCombiner::sum(double& value) {
  part("sum of float64", {});
  exchange(value);
}

void MetricCombiner::sum(std::int64_t& value) {
  part("sum of int64", {});
  exchange(value);
}

void MetricCombiner::sum(ExactSum& value) {
  part("exact sum", {});
  value.carry();
  const auto whole = [&](std::int64_t& digit) {
    auto number = static_cast<double>(digit);
    exchange(number);
    digit = static_cast<std::int64_t>(number);
  };
  for (auto& digit : value.digits_) whole(digit);
  whole(value.nans_);
  whole(value.positive_infinities_);
  whole(value.negative_infinities_);
  value.carry();
}

void MetricCombiner::min(double& value) {
  part("min of float64", {});
  pick(value, Extreme::min);
}

void MetricCombiner::min(std::int64_t& value) {
  part("min of int64", {});
  pick(value, Extreme::min);
}

void MetricCombiner::max(double& value) {
  part("max of float64", {});
  pick(value, Extreme::max);
}

void MetricCombiner::max(std::int64_t& value) {
  part("max of int64", {});
  pick(value, Extreme::max);
}

void MetricCombiner::sum(at::Tensor& values) {
  each(values, "sum of a tensor", [&](auto& value) { exchange(value); });
}

void MetricCombiner::min(at::Tensor& values) {
  each(values, "min of a tensor", [&](auto& value) { pick(value, Extreme::min); });
}

void MetricCombiner::max(at::Tensor& values) {
  each(values, "max of a tensor", [&](auto& value) { pick(value, Extreme::max); });
}

void combine_over_ranks(const Group& group, const std::function<void(MetricCombiner&)>& visit) {
  MetricCombiner combiner(group.rank(), group.size());
  combiner.layout_ = hash_start;
  combiner.values_.resize(header);
  visit(combiner);
  auto& values = combiner.values_;
  const auto layout = static_cast<double>((combiner.layout_ ^ combiner.layout_ >> 32) & hash_mask);
  values[0] = layout;
  values[1] = layout * layout;

  const auto host = group.host();
  const at::Tensor sums = host.empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  double* const sum = sums.mutable_data_ptr<double>();
  std::ranges::copy(values, sum);
  const SourceScope scope(host.communicator(), {.content = Source::Content::metrics});
  host.all_reduce(sums).wait();
  std::copy_n(sum, values.size(), values.begin());

  expect_same_layout(values, group.size());
  combiner.combined_ = true;
  combiner.next_ = header;
  visit(combiner);
  if (combiner.next_ != values.size()) {
    detail::throw_invalid(
        "compute",
        "a metric's combine() passed fewer values on its second call than on its first. Pass the "
        "same values on every call.");
  }
}

}  // namespace lockstep
