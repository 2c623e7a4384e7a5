#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "comm/control/address.h"

namespace lockstep::inline v0_2::control {

/// The secret of a world, which only its ranks have.
using Token = std::array<char, 32>;

/// The addresses at which rank 0 listens for the others. It is sent as raw bytes.
struct Offer {
  std::array<char, 512> refusal{};  ///< why it waits nowhere; empty if it does
  Token token{};
  std::uint64_t network = 0;  ///< rank 0's, as in Settings
  std::uint32_t count = 0;
  std::array<Address, 16> addresses{};
};
static_assert(std::is_trivially_copyable_v<Offer>);

/// A rank's first message to rank 0.
struct Hello {
  Token token{};
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::array<char, 32> version{};
  std::array<char, 64> host{};
};

/// Rank 0's answer to a Hello.
struct Greeting {
  Token token{};
  std::array<char, 64> host{};
  std::int64_t heartbeat = 0;  ///< longest silence in milliseconds
};

/// The text that a field of fixed size holds, and the other way round: as much of it as fits.
template <std::size_t N>
std::string text_of(const std::array<char, N>& field) {
  return {field.data(), ::strnlen(field.data(), N)};
}
template <std::size_t N>
void set_text(std::array<char, N>& field, std::string_view text) {
  field.fill(0);
  text.copy(field.data(), N - 1);
}

/// A value as the payload of a frame.
template <class Value>
std::string bytes_of(const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace lockstep::control
