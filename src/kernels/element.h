#pragma once

#include <cstdint>

#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The types by which elements of a dtype are stored in memory (Stored) and computed with (Value).
template <DType kDtype>
struct Element;

template <class InMemory, class OfNumber = InMemory>
struct ElementTypes {
  using Stored = InMemory;
  using Value = OfNumber;
};
template <>
struct Element<DType::f32> : ElementTypes<float> {};
template <>
struct Element<DType::f64> : ElementTypes<double> {};
template <>
struct Element<DType::f16> : ElementTypes<std::uint16_t, float> {};
template <>
struct Element<DType::bf16> : ElementTypes<std::uint16_t, float> {};
template <>
struct Element<DType::i8> : ElementTypes<std::int8_t> {};
template <>
struct Element<DType::u8> : ElementTypes<std::uint8_t> {};
template <>
struct Element<DType::boolean> : ElementTypes<std::uint8_t> {};
template <>
struct Element<DType::i16> : ElementTypes<std::int16_t> {};
template <>
struct Element<DType::i32> : ElementTypes<std::int32_t> {};
template <>
struct Element<DType::i64> : ElementTypes<std::int64_t> {};

}  // namespace lockstep::detail
