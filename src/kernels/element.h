#pragma once

#include <cstdint>

#include "lockstep/types.h"

namespace lockstep::inline v0_2::detail {

/// The types by which elements of a dtype are stored in memory (Stored) and computed with (Value).
template <DType kDtype>
struct Element;

template <>
struct Element<DType::f32> {
  using Stored = float;
  using Value = float;
};
template <>
struct Element<DType::f64> {
  using Stored = double;
  using Value = double;
};
template <>
struct Element<DType::f16> {
  using Stored = std::uint16_t;
  using Value = float;
};
template <>
struct Element<DType::bf16> {
  using Stored = std::uint16_t;
  using Value = float;
};
template <>
struct Element<DType::i8> {
  using Stored = std::int8_t;
  using Value = std::int8_t;
};
template <>
struct Element<DType::u8> {
  using Stored = std::uint8_t;
  using Value = std::uint8_t;
};
template <>
struct Element<DType::boolean> {
  using Stored = std::uint8_t;
  using Value = std::uint8_t;
};
template <>
struct Element<DType::i16> {
  using Stored = std::int16_t;
  using Value = std::int16_t;
};
template <>
struct Element<DType::i32> {
  using Stored = std::int32_t;
  using Value = std::int32_t;
};
template <>
struct Element<DType::i64> {
  using Stored = std::int64_t;
  using Value = std::int64_t;
};

}  // namespace lockstep::detail
