#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>

#include "comm/control/address.h"
#include "comm/control/connection.h"
#include "lockstep/version.h"

namespace lockstep::inline v0_2::control {

/// Another rank that this one has a connection to.
struct Member {
  Connection connection;
  int rank = 0;
  std::string host = {};                  ///< as it is called in messages
  std::chrono::milliseconds heartbeat{};  ///< longest silence that is agreed on
};

/// Of a rank that has gone silent for so long the host is given up.
inline constexpr std::chrono::milliseconds default_heartbeat = std::chrono::seconds(2);

/// How one rank connects to the others.
struct Settings {
  int rank = 0;
  int size = 1;
  std::string host = {};  ///< what this rank's host is called in messages
  /// Equal for processes that reach one another's loopback.
  std::uint64_t network = 0;
  std::string interface = {};  ///< the only one to be used; empty leaves that to the routes
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< until all have come
  std::chrono::milliseconds heartbeat = default_heartbeat;  ///< longest silence; rank 0's counts
  std::string version = std::string(lockstep::version());   ///< both ends are of the same
  /// Called every few milliseconds of waiting. An exception from it ends the wait.
  std::function<void()> look = [] {};
};

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
