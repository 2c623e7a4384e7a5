#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace lockstep::inline v0_2::control {

/// The bytes of a value, for messages.
template <class Value>
std::string bytes_of(const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// A random secret of a world, which only its ranks have.
using Token = std::array<char, 32>;

/// The random number that a side of a connection contributes to its keys.
using Nonce = std::array<char, 32>;

/// Throws: CommError if libsodium cannot be used.
void fill_random(void* bytes, std::size_t count);
inline std::array<char, 32> random_bytes() {
  std::array<char, 32> bytes;
  fill_random(bytes.data(), bytes.size());
  return bytes;
}

/// A token for one use of another token's owners. It does not tell the other token.
Token derived_token(const Token& from, std::string_view use);

/// The secret of a world whose ranks have no other way to share one: the first bytes of the file
/// that LOCKSTEP_TOKEN_FILE names; all zeros if it is unset.
/// Throws: InvalidArgument if the file cannot be read, has fewer bytes than a token, or is readable
/// by other users.
Token token_of_file();

/// The token as 64 hexadecimal digits, and the token of such a text.
/// Throws: InvalidArgument naming the variable for another text.
Token parse_token(const std::string& variable, const std::string& text);
std::string hexadecimal(const Token& token);

/// Overwrites a token whose owner ends.
void erase(Token& token);

/// Adds a message authentication code (MAC) to each payload of one direction of a connection, or
/// checks and removes it. It covers the number of the frame, so frames have to arrive in order.
class FrameMac {
 public:
  static constexpr std::size_t bytes = 16;
  using Key = std::array<unsigned char, 32>;

  explicit FrameMac(const Key& key) : key_(key) {}
  ~FrameMac();
  FrameMac(const FrameMac&) = default;
  FrameMac& operator=(const FrameMac&) = default;

  void add(std::uint16_t kind, std::string& payload);
  /// Throws: CommError if the MAC is not that of the next frame.
  void remove(std::uint16_t kind, std::string& payload);
  /// Whether no frame has come.
  bool begins() const { return frames_ == 0; }

 private:
  /// That of the next frame.
  std::array<unsigned char, bytes> of(std::uint16_t kind, std::string_view payload) const;

  Key key_;
  std::uint64_t frames_ = 0;
};

/// The purpose of a connection and its two sides.
struct Parties {
  std::string_view purpose;
  std::int32_t gatherer = 0;  ///< the rank that listens
  std::int32_t joiner = 0;    ///< the rank that connects
  Nonce of_gatherer{};
  Nonce of_joiner{};
};

/// The MACs of both directions.
struct ConnectionMacs {
  FrameMac to_gatherer;
  FrameMac to_joiner;
};
ConnectionMacs macs_of(const Token& token, const Parties& parties);

}  // namespace lockstep::control
