#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "comm/control/address.h"
#include "comm/control/offer.h"
#include "core/deadline.h"

namespace lockstep::inline v0_2::control {

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
    std::string source = connection.peer().host();
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
  /// Closes the oldest connection of the source address that has the most, unless its Hello has
  /// arrived.
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
