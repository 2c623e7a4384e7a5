#include "kernels/low_precision.h"

#include <algorithm>

#include "kernels/blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/low_precision.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/half-inl.h"

#ifndef LOCKSTEP_KERNELS_LOW_PRECISION
#define LOCKSTEP_KERNELS_LOW_PRECISION
namespace lockstep::inline v0_2::kernels {
namespace {

/// A counter gives four words of 32 bits, and an element needs 16 bits.
constexpr std::size_t counters_of_block = 64;
constexpr std::size_t block = 8 * counters_of_block;  ///< elements

}  // namespace
}  // namespace lockstep::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace lockstep::inline v0_2::kernels::HWY_NAMESPACE {

using Words = hn::ScalableTag<std::uint32_t>;
using Word = hn::Vec<Words>;
using Floats = hn::ScalableTag<float>;

/// The two halves of the 64-bit products.
HWY_INLINE void multiply(Word a, std::uint32_t factor, Word& high, Word& low) {
  const Words d;
#if HWY_TARGET == HWY_SCALAR
  const auto product = std::uint64_t{hn::GetLane(a)} * factor;
  high = hn::Set(d, static_cast<std::uint32_t>(product >> 32));
  low = hn::Set(d, static_cast<std::uint32_t>(product));
#else
  const hn::Repartition<std::uint64_t, Words> wide;
  const auto b = hn::Set(d, factor);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
  const auto upper = hn::Set(wide, std::uint64_t{0xffffffff00000000});
  high = hn::BitCast(d, hn::Or(hn::ShiftRight<32>(even), hn::And(odd, upper)));
  low = hn::Mul(a, b);
#endif
}

/// One random number of 16 bits for each element of a block.
HWY_INLINE void random_numbers(const RandomStream& stream, std::uint32_t of_block,
                               std::uint32_t* numbers) {
  const Words d;
  const auto low_half = hn::Set(d, 0xffff);
  for (std::size_t j = 0; j < counters_of_block; j += hn::Lanes(d)) {
    const auto counter = static_cast<std::uint32_t>(of_block * counters_of_block + j);
    auto c0 = hn::Iota(d, counter);
    auto c1 = hn::Set(d, stream.tensor);
    auto c2 = hn::Set(d, stream.step);
    auto c3 = hn::Set(d, stream.parameter);
    std::uint32_t key0 = 0;
    std::uint32_t key1 = 0;
    for (int round = 0; round < 10; ++round) {
      Word high0, low0, high2, low2;
      multiply(c0, 0xd2511f53, high0, low0);
      multiply(c2, 0xcd9e8d57, high2, low2);
      c0 = hn::Xor(hn::Xor(high2, c1), hn::Set(d, key0));
      c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key1));
      c1 = low2;
      c3 = low0;
      key0 += 0x9e3779b9;
      key1 += 0xbb67ae85;
    }
    auto* to = numbers + j;
    const auto store = [&](Word word) {
      hn::StoreU(hn::And(word, low_half), d, to);
      hn::StoreU(hn::ShiftRight<16>(word), d, to + counters_of_block);
      to += 2 * counters_of_block;
    };
    store(c0);
    store(c1);
    store(c2);
    store(c3);
  }
}

/// Adds a random number below one unit of the last place, and truncates.
void round_block_stochastically(const float* values, const RandomStream& stream,
                                std::size_t of_block, std::uint16_t* rounded) {
  const Floats d;
  const Words u;
  HWY_ALIGN std::uint32_t numbers[block];
  random_numbers(stream, static_cast<std::uint32_t>(of_block), numbers);
  for (std::size_t i = 0; i < block; i += hn::Lanes(d)) {
    const auto of_element = hn::LoadU(d, values + i);
    const auto bits = hn::BitCast(u, of_element);
    const auto sum = hn::Add(bits, hn::LoadU(u, numbers + i));
    const auto quiet_nan = hn::Or(bits, hn::Set(u, 0x400000));
    const auto result =
        hn::IfThenElse(hn::IsNaN(of_element), hn::BitCast(d, quiet_nan), hn::BitCast(d, sum));
    hn::StoreU(low_halves(d, hn::ShiftRight<16>(hn::BitCast(u, result))), HalfTag<Floats>(),
               rounded + i);
  }
}

void round_block_with_compensation(const float* values, std::uint16_t* rounded,
                                   std::uint16_t* compensation) {
  const Floats d;
  const Words u;
  for (std::size_t i = 0; i < block; i += hn::Lanes(d)) {
    const auto of_element = hn::LoadU(d, values + i);
    const auto bits = hn::And(round_to_bf16(d, of_element), hn::Set(u, 0xffff0000));
    const auto nearest = hn::BitCast(d, bits);
    const auto rest = hn::Sub(of_element, nearest);
    const auto is_finite = hn::Lt(hn::And(bits, hn::Set(u, 0x7f800000)), hn::Set(u, 0x7f800000));
    const auto kept = hn::IfThenElseZero(hn::RebindMask(d, is_finite), rest);
    hn::StoreU(low_halves(d, hn::ShiftRight<16>(bits)), HalfTag<Floats>(), rounded + i);
    hn::StoreU(f32_to_bf16(d, kept), HalfTag<Floats>(), compensation + i);
  }
}

void add_compensation_to_block(const std::uint16_t* rounded, const std::uint16_t* compensation,
                               float* values) {
  const Floats d;
  const Words u;
  const HalfTag<Floats> halves;
  for (std::size_t i = 0; i < block; i += hn::Lanes(d)) {
    const auto nearest = bf16_to_f32(d, hn::LoadU(halves, rounded + i));
    const auto rest = bf16_to_f32(d, hn::LoadU(halves, compensation + i));
    // 2 to the power of the exponent. A bfloat16 has 8 bits of mantissa, the first of which is 1.
    const auto power = hn::BitCast(d, hn::And(hn::BitCast(u, nearest), hn::Set(u, 0x7f800000)));
    const auto is_own = hn::Le(hn::Abs(rest), hn::Mul(power, hn::Set(d, 0x1p-8f)));
    hn::StoreU(hn::Add(nearest, hn::IfThenElseZero(is_own, rest)), d, values + i);
  }
}

template <bool kIsBf16>
HWY_INLINE void refresh_block_of(const std::uint16_t* rounded, float* masters) {
  const Floats d;
  const Words u;
  const HalfTag<Floats> halves;
  for (std::size_t i = 0; i < block; i += hn::Lanes(d)) {
    const auto master = hn::LoadU(d, masters + i);
    const auto found = hn::LoadU(halves, rounded + i);
    auto nearest = found;
    auto value = master;
    if constexpr (kIsBf16) {
      nearest = f32_to_bf16(d, master);
      value = bf16_to_f32(d, found);
    } else {
      nearest = f32_to_f16(d, master);
      value = f16_to_f32(d, found);
    }
    const auto is_same = hn::Eq(hn::PromoteTo(u, nearest), hn::PromoteTo(u, found));
    hn::StoreU(hn::IfThenElse(hn::RebindMask(d, is_same), master, value), d, masters + i);
  }
}

void refresh_block(bool is_bf16, const std::uint16_t* rounded, float* masters) {
  is_bf16 ? refresh_block_of<true>(rounded, masters) : refresh_block_of<false>(rounded, masters);
}

}  // namespace lockstep::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::inline v0_2::kernels {

HWY_EXPORT(round_block_stochastically);
HWY_EXPORT(round_block_with_compensation);
HWY_EXPORT(add_compensation_to_block);
HWY_EXPORT(refresh_block);

void round_stochastically(std::span<const float> values, const RandomStream& stream,
                          std::size_t first, std::uint16_t* rounded) {
  for (std::size_t at = 0; at < values.size();) {
    const std::size_t of_block = (first + at) / block;
    const std::size_t begin = (first + at) % block;
    const std::size_t length = std::min(block - begin, values.size() - at);
    if (length == block) {
      HWY_DYNAMIC_DISPATCH(round_block_stochastically)
      (values.data() + at, stream, of_block, rounded + at);
    } else {
      float padded[block] = {};
      std::uint16_t result[block];
      std::copy_n(values.data() + at, length, padded + begin);
      HWY_DYNAMIC_DISPATCH(round_block_stochastically)(padded, stream, of_block, result);
      std::copy_n(result + begin, length, rounded + at);
    }
    at += length;
  }
}

void round_with_compensation(std::span<const float> values, std::uint16_t* rounded,
                             std::uint16_t* compensation) {
  const auto round = [](std::size_t, const float* from, std::uint16_t* to, std::uint16_t* rest) {
    HWY_DYNAMIC_DISPATCH(round_block_with_compensation)(from, to, rest);
  };
  for_each_block<block>(values.size(), round, values.data(), rounded, compensation);
}

void add_compensation(const std::uint16_t* rounded, const std::uint16_t* compensation,
                      std::span<float> values) {
  const auto add = [](std::size_t, const std::uint16_t* from, const std::uint16_t* rest,
                      float* to) {
    HWY_DYNAMIC_DISPATCH(add_compensation_to_block)(from, rest, to);
  };
  for_each_block<block>(values.size(), add, rounded, compensation, values.data());
}

void refresh_masters(DType dtype, const std::uint16_t* rounded, std::span<float> masters) {
  const auto refresh = [&](std::size_t, const std::uint16_t* from, float* to) {
    HWY_DYNAMIC_DISPATCH(refresh_block)(dtype == DType::bf16, from, to);
  };
  for_each_block<block>(masters.size(), refresh, rounded, masters.data());
}

}  // namespace lockstep::kernels
#endif  // HWY_ONCE
