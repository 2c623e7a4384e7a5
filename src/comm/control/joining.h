#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/control/address.h"
#include "comm/control/connection.h"
#include "comm/control/handshake.h"
#include "core/deadline.h"
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
  std::string noun = "rank";        ///< what texts call those that join: rank or node
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
  /// Time of a wait for other ranks after which this rank reports it, and after each doubled time;
  /// 0: never.
  std::chrono::milliseconds stall_warning{};
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
  return detail::concat(settings.purpose, ": ", settings.noun, ' ', settings.rank, " of ",
                        settings.size, " on host ", settings.host, ' ', what...);
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

/// The side of the rank that gathers: of rank 0 for control connections, of every rank for the
/// streams of a network. It listens from construction until all higher ranks have joined. It
/// refuses connections without the token, which have no other effect. A rank whose connection ends
/// may join again until then: a connection replaces earlier ones of its process. Another process
/// replaces one whose connection ends, or that was silent for the heartbeat. A rank with the token
/// but with another version or world size ends the rendezvous for all ranks.
class Gathering {
 public:
  /// Throws: CommError if the interface cannot be used, or if no address can be listened on.
  explicit Gathering(Settings settings);
  ~Gathering() { erase(offer_.token); }
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;

  /// The offer that the other ranks need to connect.
  const Offer& offer() const { return offer_; }
  /// The token of ranks that join, if it was not known at construction. Before wait().
  void set_token(const Token& token) { offer_.token = token; }
  /// After wait(): the Settings::offer of all ranks that have one, by rank.
  const std::vector<Offer>& offers() const { return offers_; }

  /// Waits until all other ranks have joined, and notifies them.
  /// Throws: TimeoutError naming the ranks that did not join. CommError if two processes claim the
  /// same rank, if versions or world sizes differ, or if a joined rank has failed. All joined ranks
  /// raise the same error.
  std::vector<Member> wait();

 private:
  using Clock = std::chrono::steady_clock;

  /// A connection whose Hello has not arrived.
  struct PendingConnection {
    Connection connection;
    Nonce nonce = random_bytes();  ///< of the challenge that it got
    Clock::time_point since = Clock::now();
  };

  void check_world();
  /// Listens on those of the interface's addresses on which it can.
  void listen_on(const Interface& interface);
  bool listen_on(const Address& address);
  void process_connections(detail::Deadline& until);
  /// Whether all ranks have joined and their connections are open.
  bool all_here();
  void accept_connections(int listening);
  /// Closes the oldest connection, unless its Hello has arrived.
  void evict();
  /// Reads its Hello. False when the connection was admitted, refused or closed.
  bool read_hello(PendingConnection& pending);
  void admit(PendingConnection& pending, Frame& hello);
  /// Reads from a rank that has joined. False if its connection has ended.
  bool watch(Member& member);
  /// Reports a connection that is closed, after which its sender may connect again.
  void report(const PendingConnection& pending, const std::string& why);
  /// Closes a connection whose sender shall not connect again.
  void refuse(PendingConnection& pending, const std::string& why);
  /// Ends the rendezvous for all joined ranks, and throws the failure.
  [[noreturn]] void end(const Failure& failure);
  void send_to_all(const Frame& frame);
  std::vector<int> missing() const;
  std::string missing_text() const;

  Settings settings_;
  Offer offer_;
  std::vector<Offer> offers_;
  std::vector<detail::Descriptor> listening_;
  std::deque<PendingConnection> pending_;  ///< in the order in which they were accepted
  std::vector<Member> members_;
  std::map<int, std::string> lost_;  ///< notes on ranks whose connections have ended
  std::string listen_error_;         ///< why the last address could not be listened on
  std::string last_refusal_;         ///< the last refusal, for the error text about missing ranks
  int reports_ = 0;                  ///< closed connections that were reported
};

/// Returns the present offer of the rank that gathers. Called before each round of attempts to
/// connect.
/// Throws: CommError while there is none.
using OfferSource = std::function<Offer()>;

/// Where the rank that gathers listens, unless its environment says otherwise: PyTorch's port.
inline constexpr std::uint16_t default_port = 29500;

/// The offer of a rank 0 that listens on a known port, now or later. The name is resolved at each
/// call.
/// Throws, when called: CommError with the resolver's text while the name does not resolve.
OfferSource offer_at(const std::string& host, std::uint16_t port, const Token& token);

/// The side of all other ranks of the rendezvous with the rank that gathers. Connects to it by the
/// first of its addresses that answers, and returns when all ranks have joined. If the connection
/// ends before, connects again. offers: gets those of all ranks with Settings::offer, by rank.
/// Throws: TimeoutError naming the addresses and the error of each. CommError if all addresses
/// refuse an offer with Offer::listening, if the interface cannot be used, and with the failure
/// that ended the rendezvous for all ranks.
Member join(const OfferSource& source, const Settings& settings,
            std::vector<Offer>* offers = nullptr);
Member join(const Offer& offer, const Settings& settings, std::vector<Offer>* offers = nullptr);

}  // namespace lockstep::control
