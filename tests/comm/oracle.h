#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/reference/kernels.h"
#include "comm/communicator.h"
#include "core/text.h"

// Expected results of collectives, restated over vectors of bytes held in one process.

namespace lockstep::testing {

using Bytes = std::vector<std::byte>;

/// The bytes of 1, 2 and 3, and of a fraction more if the dtype has fractions.
inline Bytes one_two_three(DType dtype) {
  const auto bytes_of = [](const auto& element) {
    Bytes bytes;
    for (const int value : {1, 2, 3}) {
      const auto number = element(value);
      const auto* const begin = reinterpret_cast<const std::byte*>(&number);
      bytes.insert(bytes.end(), begin, begin + sizeof number);
    }
    return bytes;
  };
  using namespace kernels::reference;
  const auto half = [](int value) { return static_cast<float>(value) + 0.25f; };
  switch (dtype) {
    case DType::f32:
      return bytes_of([](int value) { return static_cast<float>(value) + 0.1f; });
    case DType::f64:
      return bytes_of([](int value) { return static_cast<double>(value) + 0.1; });
    case DType::f16:
      return bytes_of([&](int value) { return to_f16(half(value)); });
    case DType::bf16:
      return bytes_of([&](int value) { return to_bf16(half(value)); });
    case DType::i16:
      return bytes_of([](int value) { return static_cast<std::int16_t>(value); });
    case DType::boolean:
      return bytes_of([](int value) { return static_cast<std::uint8_t>(value % 2); });
    case DType::i32:
      return bytes_of([](int value) { return value; });
    case DType::i64:
      return bytes_of([](int value) { return std::int64_t{value}; });
    default:  // i8 and u8
      return bytes_of([](int value) { return static_cast<std::uint8_t>(value); });
  }
}

/// Elements that differ by rank, position and salt, small enough that no dtype overflows when seven
/// are added.
inline Bytes make_input(DType dtype, std::size_t count, int rank, int salt) {
  const Bytes elements = one_two_three(dtype);
  Bytes bytes(count * size_of(dtype));
  const std::size_t seed =
      static_cast<std::size_t>(rank) * 40503u + static_cast<std::size_t>(salt) * 9973u;
  // Of a type, since a call of memcpy() for each element takes most of the time.
  const auto fill = [&]<class Stored>(Stored) {
    Stored choices[3];
    std::memcpy(choices, elements.data(), sizeof choices);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t mixed = (i * 2654435761u + seed) >> 7;
      std::memcpy(bytes.data() + i * sizeof(Stored), &choices[mixed % 3], sizeof(Stored));
    }
  };
  switch (size_of(dtype)) {
    case 1:
      fill(std::uint8_t{});
      break;
    case 2:
      fill(std::uint16_t{});
      break;
    case 4:
      fill(std::uint32_t{});
      break;
    default:
      fill(std::uint64_t{});
  }
  return bytes;
}

inline std::vector<Bytes> make_inputs(DType dtype, std::size_t count, int size, int salt) {
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(make_input(dtype, count, rank, salt));
  return inputs;
}

/// The reduction of all inputs in rank order, by scalar code.
inline Bytes reduce_all(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
                        std::size_t count) {
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  Bytes result(count * size_of(dtype));
  std::byte* output = result.data();
  kernels::reference::reduce(dtype, op, pointers, {&output, 1}, count);
  return result;
}

/// Every float multiplied by the factor, rounded once.
inline Bytes multiplied(DType dtype, Bytes elements, double factor) {
  const auto each = [&]<class Stored>(Stored, const auto& product) {
    for (std::size_t at = 0; at < elements.size(); at += sizeof(Stored)) {
      Stored value;
      std::memcpy(&value, elements.data() + at, sizeof value);
      value = product(value);
      std::memcpy(elements.data() + at, &value, sizeof value);
    }
  };
  using namespace kernels::reference;
  const auto single = static_cast<float>(factor);
  switch (dtype) {
    case DType::f32:
      each(float{}, [&](float value) { return value * single; });
      break;
    case DType::f64:
      each(double{}, [&](double value) { return value * factor; });
      break;
    case DType::f16:
      each(std::uint16_t{}, [&](std::uint16_t half) { return to_f16(from_f16(half) * single); });
      break;
    default:
      each(std::uint16_t{}, [&](std::uint16_t half) { return to_bf16(from_bf16(half) * single); });
  }
  return elements;
}

/// The reduction of floats in a reduced-precision wire dtype.
inline Bytes reduce_rounded(const Wire& wire, ReduceOp op, const std::vector<Bytes>& inputs,
                            std::size_t count) {
  std::vector<std::vector<float>> values(inputs.size(), std::vector<float>(count));
  std::vector<std::span<const float>> spans;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (count > 0) std::memcpy(values[i].data(), inputs[i].data(), inputs[i].size());
    spans.emplace_back(values[i]);
  }
  std::vector<float> result(count);
  kernels::reference::reduce_rounded(wire, op, spans, result);
  const auto bytes = std::as_bytes(std::span(result));
  return {bytes.begin(), bytes.end()};
}

/// Elements [begin, begin + count) of the bytes.
inline Bytes slice(const Bytes& bytes, DType dtype, std::size_t begin, std::size_t count) {
  const auto element = static_cast<std::ptrdiff_t>(size_of(dtype));
  const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(begin) * element;
  return Bytes(from, from + static_cast<std::ptrdiff_t>(count) * element);
}

/// The same by slices of whole cache lines, slice s from rank s + 1 on, around to rank s.
inline Bytes reduce_around_the_ring(DType dtype, ReduceOp op, std::vector<Bytes> inputs,
                                    std::size_t count) {
  const std::size_t line = 64 / size_of(dtype);
  const std::size_t lines = (count + line - 1) / line;
  const std::size_t share = (lines + inputs.size() - 1) / inputs.size() * line;
  Bytes whole;
  for (std::size_t begin = 0; begin < count; begin += share) {
    std::rotate(inputs.begin(), inputs.begin() + 1, inputs.end());
    const std::size_t length = std::min(share, count - begin);
    std::vector<Bytes> slices;
    for (const auto& input : inputs) slices.push_back(slice(input, dtype, begin, length));
    const Bytes sum = reduce_all(dtype, op, slices, length);
    whole.insert(whole.end(), sum.begin(), sum.end());
  }
  return whole;
}

/// Where a rank's buffer lies: memory of the group, or any other.
enum class Place { group, elsewhere };

/// A buffer at some place with guard bytes behind it.
class Buffer {
 public:
  Buffer(Communicator& group, Place place, const Bytes& content) : size_(content.size()) {
    memory_ = place == Place::group
                  ? group.allocate(size_ + guard)
                  : std::shared_ptr<std::byte>(new std::byte[size_ + guard],
                                               std::default_delete<std::byte[]>());
    if (size_ > 0) std::memcpy(memory_.get(), content.data(), size_);
    std::memset(memory_.get() + size_, 0x5a, guard);
  }

  std::byte* data() const { return memory_.get(); }

  void expect(const Bytes& expected, const std::string& what) const {
    if (expected.size() != size_) throw std::logic_error(what + ": the test expects another size");
    const std::byte* got = data();
    // Element by element only for the message: sanitizers make such a loop slow.
    if (size_ > 0 && std::memcmp(got, expected.data(), size_) != 0) {
      const auto at = static_cast<std::size_t>(
          std::mismatch(expected.begin(), expected.end(), got).first - expected.begin());
      throw std::runtime_error(lockstep::detail::concat(what, ": byte ", at, " of ", size_, " is ",
                                                        static_cast<int>(got[at]), ", expected ",
                                                        static_cast<int>(expected[at])));
    }
    if (std::any_of(got + size_, got + size_ + guard, [](auto b) { return b != std::byte{0x5a}; }))
      throw std::runtime_error(what + ": wrote past the end");
  }

 private:
  static constexpr std::size_t guard = 64;
  std::size_t size_;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace lockstep::testing
