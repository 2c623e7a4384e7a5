#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "comm/control/address.h"
#include "comm/control/connection.h"
#include "comm/control/handshake.h"
#include "core/text.h"
#include "lockstep/version.h"

namespace lockstep::inline v0_2::control {

/// The Offer::network of a rank whose host is not known.
inline constexpr std::uint64_t unknown_network = ~std::uint64_t{0};

/// The addresses at which a rank listens for others. It is sent as raw bytes.
struct Offer {
  Token token{};
  std::uint64_t network = 0;  ///< the rank's Settings::network, or unknown_network
  std::int32_t rank = 0;      ///< the rank that listens
  /// Whether the rank listened when it made this offer. Then a rank that is refused at all
  /// addresses ends joining soon. Otherwise it may listen later, and the rank tries until its
  /// timeout.
  bool listening = false;
  bool ucx = false;  ///< whether the rank can send messages over UCX
  std::uint32_t count = 0;
  std::array<Address, 16> addresses{};

  bool operator==(const Offer&) const = default;
};
static_assert(std::is_trivially_copyable_v<Offer>);

/// A side closes a connection on which the other side's first message, challenge or Hello, has not
/// come by then.
inline constexpr auto hello_timeout = std::chrono::seconds(15);

/// Another rank, with the connection to it.
struct Member {
  Connection connection;
  int rank = 0;
  std::string host = {};                  ///< name of its host in error texts
  std::chrono::milliseconds heartbeat{};  ///< longest time without a heartbeat; rank 0's setting
  std::uint64_t process = 0;              ///< Hello::process
  std::uint64_t attempt = 0;              ///< Hello::attempt
  Offer offer = {};                       ///< its Settings::offer
  /// While ranks join: the time of its last frame.
  std::chrono::steady_clock::time_point last_frame = std::chrono::steady_clock::now();
};

/// Default of the longest time without a heartbeat.
inline constexpr std::chrono::milliseconds default_heartbeat = std::chrono::seconds(15);

/// Settings of one rank's connections to others.
struct Settings {
  std::string purpose = "control";  ///< what the connections are for, in texts
  int rank = 0;
  int size = 1;
  std::string host = {};  ///< name of this rank's host in error texts
  /// Network id, equal for processes that can connect over loopback.
  std::uint64_t network = 0;
  std::string interface = {};  ///< network interface; empty: the system's routes select it
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< until all ranks have joined
  std::chrono::milliseconds heartbeat =
      default_heartbeat;  ///< longest time without one; rank 0's value is used
  std::string version = std::string(lockstep::version());  ///< must be the same on both sides
  /// Called every 20 ms during a wait. An exception from it ends the wait.
  std::function<void()> on_wait = [] {};
  /// Whether so many ranks are enough for the one that gathers, although others have not joined.
  std::function<bool(int ranks)> enough = [](int) { return false; };
  /// The port to listen on, on the interface or on all addresses; 0 for any ports.
  std::uint16_t port = 0;
  /// A listening, non-blocking socket to use in place of a port; -1 for none.
  int listening = -1;
  std::optional<Token> token = {};  ///< that of the offer; default: a random one
  /// This rank's offer of later connections, which all ranks get. Without its token.
  std::optional<Offer> offer = {};
};

/// "control: rank 1 of 2 on host a ", and what the rank does or is, for texts.
template <class... What>
std::string of_own(const Settings& settings, const What&... what) {
  return detail::concat(settings.purpose, ": rank ", settings.rank, " of ", settings.size,
                        " on host ", settings.host, ' ', what...);
}

/// A rank's first message to the one that listens.
struct Hello {
  Nonce nonce{};
  std::uint64_t process = 0;  ///< a random number, which differs for two processes
  std::uint64_t attempt = 0;  ///< number of this connection among those of the process
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::array<char, 32> version{};
  std::array<char, 64> host{};
  Offer offer{};  ///< Settings::offer
};

/// The answer to a Hello.
struct Greeting {
  std::array<char, 64> host{};
  std::int64_t heartbeat = 0;  ///< longest time without one, in milliseconds
};

/// Convert between a text and a field of fixed size. set_text() truncates a text that is too long.
template <std::size_t N>
std::string text_of(const std::array<char, N>& field) {
  return {field.data(), ::strnlen(field.data(), N)};
}
template <std::size_t N>
void set_text(std::array<char, N>& field, std::string_view text) {
  field.fill(0);
  text.copy(field.data(), N - 1);
}

}  // namespace lockstep::control
