#include "bench/reference/kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "core/system/denormals_guard.h"
#include "kernels/reduce.h"
#include "lockstep/denormals.h"

namespace lockstep::inline v0_2::kernels::reference {

namespace {

/// The value as an operand of arithmetic: zero for a denormal if the calling thread flushes
/// denormals. For operations for which compilers emit no arithmetic: multiplication by 1, minimum
/// and maximum.
template <class T>
T as_operand(T value) {
  if constexpr (std::is_integral_v<T>) {
    return value;
  } else {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    const auto exponent = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
    const auto bits = std::bit_cast<Bits>(value);
    const auto sign = bits & std::bit_cast<Bits>(T{-0.0});
    return (bits & exponent) == 0 && flushes_denormals() ? std::bit_cast<T>(sign) : value;
  }
}

template <class T>
T wrapping(ReduceOp op, T a, T b) {
  // Unsigned 64-bit arithmetic does not overflow, and its low bits are those of the wrapped result.
  const auto x = static_cast<std::uint64_t>(a);
  const auto y = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::product:
      return static_cast<T>(x * y);
    case ReduceOp::band:
      return static_cast<T>(x & y);
    case ReduceOp::bor:
      return static_cast<T>(x | y);
    case ReduceOp::bxor:
      return static_cast<T>(x ^ y);
    default:
      return static_cast<T>(x + y);
  }
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::min || op == ReduceOp::max) {
    if (b != b) return b;
    const T x = as_operand(a);
    const T y = as_operand(b);
    return (op == ReduceOp::min ? y < x : y > x) ? b : a;
  }
  if constexpr (std::is_integral_v<T>) {
    return wrapping(op, a, b);
  } else {
    return op == ReduceOp::product ? a * b : a + b;
  }
}

template <class T>
T average(T sum, std::size_t ranks) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(sum / static_cast<std::int64_t>(ranks));
  } else {
    return sum * (T{1} / static_cast<T>(ranks));
  }
}

template <DType kDtype>
auto value_at(const std::byte* buffer, std::size_t i) {
  typename detail::Element<kDtype>::Stored stored;
  std::memcpy(&stored, buffer + i * sizeof stored, sizeof stored);
  if constexpr (kDtype == DType::f16) {
    return from_f16(stored);
  } else if constexpr (kDtype == DType::bf16) {
    return from_bf16(stored);
  } else {
    return stored;
  }
}

template <DType kDtype>
auto stored_form(typename detail::Element<kDtype>::Value value) {
  if constexpr (kDtype == DType::f16) {
    return to_f16(value);
  } else if constexpr (kDtype == DType::bf16) {
    return to_bf16(value);
  } else {
    return value;
  }
}

template <DType kDtype>
void reduce_elements(ReduceOp op, std::span<const std::byte* const> inputs,
                     std::span<std::byte* const> outputs, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    auto result = value_at<kDtype>(inputs[0], i);
    for (const std::byte* input : inputs.subspan(1)) {
      result = combine(op, result, value_at<kDtype>(input, i));
    }
    // A reduction of one input returns it unchanged; a multiplication by 1 could flush it.
    if (op == ReduceOp::avg && inputs.size() > 1) result = average(result, inputs.size());
    const auto stored = stored_form<kDtype>(result);
    for (std::byte* output : outputs) {
      std::memcpy(output + i * sizeof stored, &stored, sizeof stored);
    }
  }
}

template <std::size_t... kIndex>
constexpr auto reduce_table(std::index_sequence<kIndex...>) {
  return std::array{&reduce_elements<all_dtypes[kIndex]>...};
}

void reduce_booleans(ReduceOp op, std::span<const std::byte* const> inputs,
                     std::span<std::byte* const> outputs, std::size_t count) {
  const auto combine_booleans = [op](bool a, bool b) {
    switch (op) {
      case ReduceOp::bxor:
        return a != b;
      case ReduceOp::sum:
      case ReduceOp::max:
      case ReduceOp::bor:
        return a || b;
      default:
        return a && b;
    }
  };
  for (std::size_t i = 0; i < count; ++i) {
    bool result = inputs[0][i] != std::byte{0};
    for (const std::byte* input : inputs.subspan(1)) {
      result = combine_booleans(result, input[i] != std::byte{0});
    }
    for (std::byte* output : outputs) output[i] = std::byte{result};
  }
}

}  // namespace

float from_f16(std::uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int mantissa = half & 0x3ff;
  float magnitude;
  if (exponent == 0x1f) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return half & 0x8000 ? -magnitude : magnitude;
}

std::uint16_t to_f16(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value)) return sign | 0x7e00;
  if (std::isinf(value)) return sign | 0x7c00;
  if (value == 0) return sign;
  // The distance between neighbouring halves at this magnitude is a power of two: count in units of
  // it.
  const int exponent = std::max(std::ilogb(value), -14);
  const double units =
      std::nearbyint(std::ldexp(std::fabs(static_cast<double>(value)), 10 - exponent));
  // Each exponent above that of denormals adds 1024 to the bits; rounding up may carry into the
  // exponent.
  const double number = units + 1024.0 * (exponent + 14);
  return static_cast<std::uint16_t>(sign | static_cast<int>(std::min(number, double{0x7c00})));
}

float from_bf16(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto below = static_cast<std::uint16_t>(bits >> 16);
  if (std::isnan(value)) return below | 0x40;
  const std::uint32_t rest = bits & 0xffff;
  const bool up = rest > 0x8000 || (rest == 0x8000 && (below & 1) != 0);
  return static_cast<std::uint16_t>(below + (up ? 1 : 0));
}

void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
            std::span<std::byte* const> outputs, std::size_t count) {
  if (dtype == DType::boolean) return reduce_booleans(op, inputs, outputs, count);
  static constexpr auto by_dtype = reduce_table(std::make_index_sequence<std::size(all_dtypes)>());
  by_dtype[static_cast<std::size_t>(dtype)](op, inputs, outputs, count);
}

namespace {

float rounded(const Wire& wire, float value) {
  return wire.dtype == DType::f16 ? from_f16(to_f16(value)) : from_bf16(to_bf16(value));
}

float contribution(const Wire& wire, float value, float divisor) {
  if (wire.clip > 0 && std::fabs(value) > wire.clip) value = std::copysign(wire.clip, value);
  if (wire.predivide) value *= divisor;
  return rounded(wire, as_operand(value));
}

/// Order: NaN, then Inf, then numbers by magnitude.
template <class T>
bool is_larger(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && !std::isnan(b);
  return std::fabs(a) > std::fabs(b);
}

}  // namespace

void reduce_rounded(const Wire& wire, ReduceOp op, std::span<const std::span<const float>> inputs,
                    std::span<float> output) {
  const float divisor = op == ReduceOp::avg ? 1.0f / static_cast<float>(inputs.size()) : 1.0f;
  for (std::size_t i = 0; i < output.size(); ++i) {
    float sum = contribution(wire, inputs[0][i], divisor);
    for (const auto& input : inputs.subspan(1)) sum += contribution(wire, input[i], divisor);
    output[i] = rounded(wire, as_operand(wire.predivide ? sum : sum * divisor));
  }
}

template <class T>
std::vector<std::uint32_t> largest(std::span<const T> data, std::size_t k) {
  const lockstep::detail::DenormalsGuard kept(false);
  std::vector<std::uint32_t> indices(data.size());
  std::iota(indices.begin(), indices.end(), 0U);
  std::stable_sort(indices.begin(), indices.end(),
                   [&](auto a, auto b) { return is_larger(data[a], data[b]); });
  indices.resize(k);
  std::sort(indices.begin(), indices.end());
  return indices;
}

template <class T>
std::vector<std::uint32_t> above(std::span<const T> data, T threshold) {
  const lockstep::detail::DenormalsGuard kept(false);
  std::vector<std::uint32_t> indices;
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (std::isnan(data[i]) || std::fabs(data[i]) >= threshold) {
      indices.push_back(static_cast<std::uint32_t>(i));
    }
  }
  return indices;
}

template std::vector<std::uint32_t> largest<float>(std::span<const float>, std::size_t);
template std::vector<std::uint32_t> largest<double>(std::span<const double>, std::size_t);
template std::vector<std::uint32_t> above<float>(std::span<const float>, float);
template std::vector<std::uint32_t> above<double>(std::span<const double>, double);

QuantizedChunk quantized(std::span<const float> values) {
  QuantizedChunk chunk{};
  float most = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      chunk.scale = std::numeric_limits<float>::quiet_NaN();
      chunk.codes[0] = static_cast<std::int8_t>(i % 256);
      chunk.codes[1] = static_cast<std::int8_t>(i / 256);
      return chunk;
    }
    most = std::max(most, std::fabs(values[i]));
  }
  if (most < std::ldexp(1.0f, -119)) return chunk;
  chunk.scale = most / 127;
  for (std::size_t i = 0; i < values.size(); ++i) {
    chunk.codes[i] = static_cast<std::int8_t>(std::nearbyint(values[i] * (127 / most)));
  }
  return chunk;
}

}  // namespace lockstep::kernels::reference
