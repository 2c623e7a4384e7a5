#include <bit>
#include <cmath>
#include <limits>

#include "lockstep/metrics.h"

namespace lockstep::inline v0_2 {

namespace {

constexpr int digit_bits = 32;
constexpr std::uint64_t digit_mask = 0xffffffff;
constexpr int mantissa_bits = 52;
constexpr int lowest_exponent = -1074;
/// An addition changes a digit by less than 2^32, so 2^30 of them cannot overflow it.
constexpr std::uint32_t additions_between_carries = 1U << 30;

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

}  // namespace lockstep
