#include "lockstep/metrics.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/operation_error.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

namespace {

// The digits of an ExactSum, and the format of a float64.
constexpr int digit_bits = 32;
constexpr std::uint64_t digit_mask = 0xffffffff;
constexpr int mantissa_bits = 52;
constexpr int lowest_exponent = -1074;
/// An addition changes a digit by less than 2^32, so 2^30 of them cannot overflow it.
constexpr std::uint32_t additions_between_carries = 1U << 30;

/// The values as a contiguous CPU tensor of int64, uint64 or float64, and no lazy negative.
at::Tensor real_numbers(const at::Tensor& values, const char* metric) {
  const bool usable = values.defined() && values.layout() == at::kStrided;
  const bool whole = usable && at::isIntegralType(values.scalar_type(), /*includeBool=*/true);
  if (!usable || !(whole || at::isFloatingType(values.scalar_type()))) {
    detail::throw_invalid(metric, "got ",
                          values.defined() ? detail::concat("a tensor of ", values.scalar_type(),
                                                            usable ? "" : ", not dense")
                                           : "an undefined tensor",
                          ", expected a dense tensor of real numbers");
  }
  const auto dtype = values.scalar_type() == at::kUInt64 ? at::kUInt64
                     : whole                             ? at::kLong
                                                         : at::kDouble;
  return values.detach().to(at::kCPU, dtype).resolve_neg().contiguous();
}

template <class T>
std::span<const T> span_of(const at::Tensor& values) {
  return {values.const_data_ptr<T>(), static_cast<std::size_t>(values.numel())};
}

void expect_weight(double weight) {
  if (std::isfinite(weight) && weight >= 0) return;
  detail::throw_invalid("Mean", "got a weight of ", weight,
                        ", expected a finite number of at least 0");
}

/// The number of samples whose correct class is among the k best. Shape: [].
at::Tensor count_among_top(const at::Tensor& outputs, const at::Tensor& targets, std::int64_t k) {
  if (k == 1) return outputs.argmax(1).eq(targets).sum();
  const at::Tensor best = std::get<1>(outputs.topk(std::min(k, outputs.size(1)), 1));
  return best.eq(targets.unsqueeze(1)).sum();
}

/// Batches whose numbers a device has, before a Tally reads them.
constexpr std::size_t most_unread = 256;

}  // namespace

void ExactSum::add(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const bool negative = bits >> 63 != 0;
  const auto exponent = static_cast<unsigned>(bits >> mantissa_bits & 0x7ff);
  std::uint64_t mantissa = bits & ((std::uint64_t{1} << mantissa_bits) - 1);
  if (exponent == 0x7ff) {
    ++(mantissa != 0 ? nans_ : negative ? negative_infinities_ : positive_infinities_);
    return;
  }
  if (exponent != 0) mantissa |= std::uint64_t{1} << mantissa_bits;
  const unsigned position = exponent == 0 ? 0 : exponent - 1;
  const unsigned shift = position % digit_bits;
  const std::uint64_t low = (mantissa & digit_mask) << shift;
  const std::uint64_t high = ((mantissa >> digit_bits) << shift) + (low >> digit_bits);
  const std::int64_t sign = negative ? -1 : 1;
  std::int64_t* const digit = digits_.data() + position / digit_bits;
  digit[0] += sign * static_cast<std::int64_t>(low & digit_mask);
  digit[1] += sign * static_cast<std::int64_t>(high & digit_mask);
  digit[2] += sign * static_cast<std::int64_t>(high >> digit_bits);
  if (++additions_ == additions_between_carries) carry();
}

void ExactSum::add(std::int64_t value) {
  // A float64 holds each half exactly.
  add(static_cast<double>(value >> digit_bits) * 0x1p32);
  add(static_cast<double>(static_cast<std::uint64_t>(value) & digit_mask));
}

void ExactSum::add_product(double value, double weight) {
  const double product = value * weight;
  add(product);
  if (std::isfinite(product)) add(std::fma(value, weight, -product));
}

void ExactSum::carry() {
  for (std::size_t i = 0; i + 1 < digits_.size(); ++i) {
    const std::int64_t excess = digits_[i] >> digit_bits;
    digits_[i] &= static_cast<std::int64_t>(digit_mask);
    digits_[i + 1] += excess;
  }
  additions_ = 0;
}

double ExactSum::value() const {
  if (nans_ > 0 || (positive_infinities_ > 0 && negative_infinities_ > 0))
    return std::numeric_limits<double>::quiet_NaN();
  if (positive_infinities_ > 0) return std::numeric_limits<double>::infinity();
  if (negative_infinities_ > 0) return -std::numeric_limits<double>::infinity();

  ExactSum sum = *this;
  sum.carry();
  const bool negative = sum.digits_.back() < 0;
  if (negative) {
    for (auto& digit : sum.digits_) digit = -digit;
    sum.carry();
  }
  const auto digit = [&](std::size_t i) {
    return i < sum.digits_.size() ? static_cast<std::uint64_t>(sum.digits_[i]) : 0;
  };
  std::size_t top = sum.digits_.size() - 1;
  while (top > 0 && digit(top) == 0) --top;
  if (digit(top) == 0) return 0;

  // The highest 64 bits. The lowest of them is also set if any lower bit is set (a sticky bit), so
  // that the conversion to double rounds correctly.
  const int highest = static_cast<int>(top) * digit_bits + std::bit_width(digit(top)) - 1;
  const int lowest = highest < 63 ? 0 : highest - 63;
  const auto first = static_cast<std::size_t>(lowest / digit_bits);
  const int shift = lowest % digit_bits;
  std::uint64_t window = digit(first) >> shift | digit(first + 1) << (digit_bits - shift);
  if (shift > 0) window |= digit(first + 2) << (2 * digit_bits - shift);
  bool below = (digit(first) & ((std::uint64_t{1} << shift) - 1)) != 0;
  for (std::size_t i = 0; i < first; ++i) below = below || digit(i) != 0;
  if (below) window |= 1;
  const double magnitude = std::ldexp(static_cast<double>(window), lowest + lowest_exponent);
  return negative ? -magnitude : magnitude;
}

void Sum::add(const at::Tensor& values) {
  const at::Tensor all = real_numbers(values, "Sum");
  if (all.scalar_type() == at::kLong) {
    for (const auto value : span_of<std::int64_t>(all)) sum_.add(value);
  } else if (all.scalar_type() == at::kUInt64) {
    for (const auto value : span_of<std::uint64_t>(all)) add(value);
  } else {
    for (const auto value : span_of<double>(all)) sum_.add(value);
  }
}

void Mean::add(double value, double weight) {
  expect_weight(weight);
  if (weight == 0) return;
  sum_.add_product(value, weight);
  weight_.add(weight);
}

void Mean::add(const at::Tensor& values, double weight) {
  expect_weight(weight);
  const at::Tensor all = real_numbers(values, "Mean").to(at::kDouble);
  for (const auto value : span_of<double>(all)) add(value, weight);
}

void Mean::add(const at::Tensor& values, const at::Tensor& weights) {
  const at::Tensor all = real_numbers(values, "Mean").to(at::kDouble);
  const at::Tensor factors = real_numbers(weights, "Mean").to(at::kDouble);
  if (!at::is_expandable_to(factors.sizes(), all.sizes())) {
    detail::throw_invalid("Mean", "got weights ", factors.sizes(), " for values ", all.sizes(),
                          ", expected weights that can be expanded to the values");
  }
  const at::Tensor expanded = factors.expand(all.sizes()).contiguous();
  const auto each_weight = span_of<double>(expanded);
  for (const auto weight : each_weight) expect_weight(weight);
  const auto each_value = span_of<double>(all);
  for (std::size_t i = 0; i < each_value.size(); ++i) add(each_value[i], each_weight[i]);
}

double Mean::value() const {
  const double weight = weight_.value();
  return weight == 0 ? std::numeric_limits<double>::quiet_NaN() : sum_.value() / weight;
}

void Mean::combine(MetricCombiner& combiner) {
  combiner.sum(sum_);
  combiner.sum(weight_);
}

Tally::Tally(std::int64_t k) : k_(k) {
  if (k < 1) detail::throw_invalid("Tally", "got k ", k, ", expected at least 1");
}

void Tally::add(const at::Tensor& mean_loss, const at::Tensor& outputs, const at::Tensor& targets) {
  if (outputs.dim() != 2 || targets.dim() != 1 || outputs.size(0) != targets.size(0))
    detail::throw_invalid("Tally", "got outputs ", outputs.sizes(), " and targets ",
                          targets.sizes(), ", expected [B, classes] and [B]");
  const at::NoGradGuard no_grad;
  if (targets.size(0) == 0) return;  // the mean loss of an empty batch is NaN
  const auto right = count_among_top(outputs, targets, 1);
  const auto among_top = k_ > 1 ? count_among_top(outputs, targets, k_) : right;
  if (outputs.is_cpu()) {
    const auto number = right.item<std::int64_t>();
    add(mean_loss.item<double>(), number, targets.size(0));
    if (k_ > 1) among_top_ += among_top.item<std::int64_t>() - number;
    return;
  }
  // Float64 has each of these numbers exactly.
  unread_.push_back({.numbers = at::stack({mean_loss.detach().to(outputs.device(), at::kDouble),
                                           right.to(at::kDouble), among_top.to(at::kDouble)}),
                     .samples = targets.size(0)});
  if (unread_.size() == most_unread) read();
}

void Tally::read() {
  if (unread_.empty()) return;
  std::vector<at::Tensor> batches;
  for (const auto& batch : unread_) batches.push_back(batch.numbers);
  const at::Tensor all = at::stack(batches).to(at::kCPU);  // waits for a device once
  const auto* numbers = all.const_data_ptr<double>();
  for (const auto& batch : std::exchange(unread_, {})) {
    const auto right = static_cast<std::int64_t>(numbers[1]);
    add(numbers[0], right, batch.samples);
    among_top_ += static_cast<std::int64_t>(numbers[2]) - right;
    numbers += 3;
  }
}

void Tally::add(double mean_loss, std::int64_t right, std::int64_t samples) {
  among_top_ += right;
  loss_.add_product(mean_loss, static_cast<double>(samples));
  right_ += right;
  samples_ += samples;
}

Score Tally::score() const {
  if (!unread_.empty()) {
    auto all = *this;
    all.read();
    return all.score();
  }
  if (samples_ == 0) return {};
  const auto samples = static_cast<double>(samples_);
  return {.loss = loss_.value() / samples,
          .accuracy = static_cast<double>(right_) / samples,
          .top = static_cast<double>(among_top_) / samples,
          .samples = samples_};
}

void Tally::combine(MetricCombiner& combiner) {
  read();
  combiner.sum(loss_);
  combiner.sum(right_);
  combiner.sum(among_top_);
  combiner.sum(samples_);
}

double throughput(std::int64_t samples, double seconds, const Group& group) {
  combine_over_ranks(group, [&](MetricCombiner& combiner) {
    combiner.sum(samples);
    combiner.max(seconds);
  });
  return samples == 0 ? 0 : static_cast<double>(samples) / seconds;
}

}  // namespace lockstep
