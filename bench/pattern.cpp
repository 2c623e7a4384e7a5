#include "bench/pattern.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "bench/reference/kernels.h"

namespace lockstep::bench {

namespace {

// A prime, so that no part of a buffer begins where another did; small enough to stay in a core's
// nearest cache.
constexpr std::size_t pattern_period = 4093;

template <class T>
void put(std::vector<std::byte>& elements, std::size_t i, T value) {
  std::memcpy(elements.data() + i * sizeof value, &value, sizeof value);
}

/// Writes the real number or the integer, as the dtype has it.
void put(std::vector<std::byte>& elements, std::size_t i, DType dtype, double real,
         std::int64_t integer) {
  switch (dtype) {
    case DType::f32:
      return put(elements, i, static_cast<float>(real));
    case DType::f64:
      return put(elements, i, real);
    case DType::f16:
      return put(elements, i, kernels::reference::to_f16(static_cast<float>(real)));
    case DType::bf16:
      return put(elements, i, kernels::reference::to_bf16(static_cast<float>(real)));
    case DType::i8:
    case DType::u8:
      return put(elements, i, static_cast<std::uint8_t>(integer));
    case DType::boolean:
      return put(elements, i, static_cast<std::uint8_t>(integer % 2));
    case DType::i16:
      return put(elements, i, static_cast<std::int16_t>(integer));
    case DType::i32:
      return put(elements, i, static_cast<std::int32_t>(integer));
    case DType::i64:
      return put(elements, i, integer);
  }
}

/// Floats have all their bits in use, so that a sum in another order is seen; integers are small.
std::vector<std::byte> random_elements(DType dtype) {
  std::vector<std::byte> elements(pattern_period * size_of(dtype));
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < pattern_period; ++i) {
    const double real = static_cast<double>(random() >> 11) * 0x1p-52 - 1;  // in [-1, 1)
    put(elements, i, dtype, real, static_cast<std::int64_t>(random() % 7) + 1);
  }
  return elements;
}

std::int64_t count_different(const std::byte* a, const std::byte* b, std::size_t bytes,
                             std::size_t element_size) {
  if (std::memcmp(a, b, bytes) == 0) return 0;
  std::int64_t different = 0;
  for (std::size_t at = 0; at < bytes; at += element_size) {
    different += std::memcmp(a + at, b + at, element_size) != 0;
  }
  return different;
}

}  // namespace

Pattern::Pattern(DType dtype) : Pattern(dtype, random_elements(dtype)) {}

Pattern::Pattern(DType dtype, std::vector<std::byte> elements)
    : dtype_(dtype), elements_(std::move(elements)) {}

Pattern Pattern::reduced(ReduceOp op, std::span<const std::size_t> starts,
                         std::optional<DType> wire) const {
  std::vector<std::vector<std::byte>> periods;
  std::vector<const std::byte*> inputs;
  for (const std::size_t start : starts) {
    auto& one = periods.emplace_back(elements_.size());
    fill(one.data(), period(), start);
    inputs.push_back(one.data());
  }
  std::vector<std::byte> result(elements_.size());
  if (wire) {
    std::vector<std::span<const float>> values;
    for (const std::byte* input : inputs) {
      values.emplace_back(reinterpret_cast<const float*>(input), period());
    }
    kernels::reference::reduce_rounded({.dtype = *wire}, op, values,
                                       {reinterpret_cast<float*>(result.data()), period()});
    return Pattern(dtype_, std::move(result));
  }
  std::byte* output = result.data();
  kernels::reference::reduce(dtype_, op, inputs, {&output, 1}, period());
  return Pattern(dtype_, std::move(result));
}

void Pattern::fill(std::byte* to, std::size_t count, std::size_t start) const {
  const std::size_t element_size = size_of(dtype_);
  for (std::size_t at = start % period(); count > 0; at = 0) {
    const std::size_t run = std::min(count, period() - at);
    std::memcpy(to, elements_.data() + at * element_size, run * element_size);
    to += run * element_size;
    count -= run;
  }
}

std::int64_t Pattern::count_wrong(const std::byte* data, std::size_t count,
                                  std::size_t start) const {
  const std::size_t element_size = size_of(dtype_);
  std::int64_t wrong = 0;
  for (std::size_t at = start % period(); count > 0; at = 0) {
    const std::size_t run = std::min(count, period() - at);
    wrong += count_different(data, elements_.data() + at * element_size, run * element_size,
                             element_size);
    data += run * element_size;
    count -= run;
  }
  return wrong;
}

std::size_t pattern_start(int rank, std::uint64_t turn) {
  return (static_cast<std::size_t>(rank) * 1009 + static_cast<std::size_t>(turn) * 389) %
         pattern_period;
}

}  // namespace lockstep::bench
