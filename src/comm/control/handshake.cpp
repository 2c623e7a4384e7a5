#include "comm/control/handshake.h"

#include <sodium.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "core/environment.h"
#include "core/text.h"
#include "lockstep/error.h"

// Note [How connections are authenticated]
// The side that listens sends a random nonce, the challenge. The other side answers with its hello,
// which has a nonce of its own. Both derive a key for each direction from the token, both nonces,
// the purpose of the connection and the two ranks. The hello and every later frame, in both
// directions, end with a MAC by that key, which also covers the number of the frame. So:
// - The MAC of the hello proves that the side that connects has the token. The MAC of the answer
//   proves it of the side that listens. The token itself is not sent.
// - Frames of another connection have a wrong MAC, since a nonce of this one differs (replay). So
//   have frames that go back to their sender (reflection), or come as those of another rank.
// - A frame that is changed, repeated, missing or early ends the connection.
// In clear are the challenge and a refusal, whose sender may have no token.

namespace lockstep::inline v0_2::control {
namespace {

using detail::concat;

template <class Bytes>
const unsigned char* bytes_at(const Bytes& bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

/// A keyed hash of the added values.
class Hash {
 public:
  template <class Key>
  Hash(const Key& key, std::size_t size) {
    crypto_generichash_init(&state_, bytes_at(key), key.size(), size);
  }
  ~Hash() { sodium_memzero(&state_, sizeof state_); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  Hash& add(std::string_view bytes) {
    crypto_generichash_update(&state_, bytes_at(bytes), bytes.size());
    return *this;
  }
  void get(void* to, std::size_t size) {
    crypto_generichash_final(&state_, static_cast<unsigned char*>(to), size);
  }

 private:
  crypto_generichash_state state_;
};

}  // namespace

void fill_random(void* bytes, std::size_t count) {
  static const bool usable = sodium_init() >= 0;
  if (!usable) throw CommError("control: libsodium has no source of random numbers");
  randombytes_buf(bytes, count);
}

Token derived_token(const Token& from, std::string_view use) {
  Token token;
  Hash(from, token.size()).add("lockstep token ").add(use).get(token.data(), token.size());
  return token;
}

void erase(Token& token) { sodium_memzero(token.data(), token.size()); }

FrameMac::~FrameMac() { sodium_memzero(key_.data(), key_.size()); }

std::array<unsigned char, FrameMac::bytes> FrameMac::of(std::uint16_t kind,
                                                        std::string_view payload) const {
  std::array<unsigned char, bytes> mac;
  Hash(key_, bytes).add(bytes_of(frames_)).add(bytes_of(kind)).add(payload).get(mac.data(), bytes);
  return mac;
}

void FrameMac::add(std::uint16_t kind, std::string& payload) {
  const auto mac = of(kind, payload);
  payload.append(reinterpret_cast<const char*>(mac.data()), mac.size());
  ++frames_;
}

void FrameMac::remove(std::uint16_t kind, std::string& payload) {
  const auto size = payload.size() - std::min(payload.size(), bytes);
  const auto mac = of(kind, std::string_view(payload).substr(0, size));
  if (payload.size() < bytes || sodium_memcmp(mac.data(), payload.data() + size, bytes) != 0) {
    throw CommError(
        "the MAC of a received frame is wrong: the frame was changed, repeated or left out on its "
        "way, or its sender has another token");
  }
  payload.resize(size);
  ++frames_;
}

ConnectionMacs macs_of(const Token& token, const Parties& parties) {
  std::array<FrameMac::Key, 2> keys;
  Hash(token, sizeof keys)
      .add("lockstep connection ")
      .add(bytes_of(parties.of_gatherer))
      .add(bytes_of(parties.of_joiner))
      .add(bytes_of(parties.gatherer))
      .add(bytes_of(parties.joiner))
      .add(parties.purpose)
      .get(keys.data(), sizeof keys);
  ConnectionMacs macs{.to_gatherer = FrameMac(keys[0]), .to_joiner = FrameMac(keys[1])};
  sodium_memzero(keys.data(), sizeof keys);
  return macs;
}

Token token_of_file() {
  constexpr auto name = "LOCKSTEP_TOKEN_FILE";
  const std::string path(detail::variable(name).value_or(""));
  Token token{};
  if (path.empty()) return token;
  struct stat status {};
  std::ifstream file(path, std::ios::binary);
  const bool read = ::stat(path.c_str(), &status) == 0 && file.read(token.data(), token.size());
  if (!read || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    throw InvalidArgument(concat(name, ": got '", path,
                                 read ? "', which other users can read; expected mode 0600"
                                      : concat("'; expected a file of at least ", token.size(),
                                               " bytes; make it by: head -c 32 /dev/urandom")));
  }
  return token;
}

Token parse_token(const std::string& variable, const std::string& text) {
  Token token{};
  std::size_t bytes = 0;
  const int error = sodium_hex2bin(reinterpret_cast<unsigned char*>(token.data()), token.size(),
                                   text.data(), text.size(), nullptr, &bytes, nullptr);
  if (error != 0 || bytes != token.size()) {
    throw InvalidArgument(concat(variable, ": expected ", 2 * token.size(),
                                 " hexadecimal digits, got ", text.size(), " characters"));
  }
  return token;
}

std::string hexadecimal(const Token& token) {
  return detail::joined(token, "",
                        [](char byte) { return detail::hex(static_cast<unsigned char>(byte), 2); });
}

}  // namespace lockstep::control
