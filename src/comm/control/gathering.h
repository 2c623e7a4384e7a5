#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "comm/control/address.h"
#include "comm/control/offer.h"
#include "core/deadline.h"

namespace lockstep::inline v0_2::control {

/// Rank 0's side of the rendezvous: it listens from its construction until all ranks have joined.
/// It refuses a connection without the token, and otherwise ignores it. A rank with the token but
/// of another version or world ends the rendezvous for every rank.
class Gathering {
 public:
  /// Throws: CommError when the interface cannot be used or nothing can be listened on.
  explicit Gathering(Settings settings);

  /// The offer that the other ranks need in order to connect.
  const Offer& offer() const { return offer_; }

  /// Waits for all others, and tells them that all are here. Throws: TimeoutError naming the ranks
  /// that did not come; CommError when two say that they are the same rank, when versions or
  /// numbers of ranks differ, and when one that came has gone. All who came raise the same.
  std::vector<Member> wait();

 private:
  using Clock = std::chrono::steady_clock;

  /// A connection that has sent nothing yet.
  struct Stranger {
    Connection connection;
    Clock::time_point since = Clock::now();
  };

  void look();
  /// Listens on what can be listened on of these.
  void listen_on(const Interface& interface);
  bool listen_on(const Address& address);
  void await_news(detail::Deadline& until);
  void let_come(int listening);
  /// Hears who it is; false when it is a stranger no more.
  bool hear(Stranger& stranger);
  void take(Stranger& stranger, const std::string& hello);
  void watch(Member& member);
  void refuse(Stranger& stranger, const std::string& why);
  /// Ends the meeting for all who have come. Throws.
  [[noreturn]] void end(const Failure& failure);
  void tell_all(const Frame& frame);
  std::vector<int> missing_ranks() const;
  std::string missing() const;

  Settings settings_;
  Offer offer_;
  std::vector<detail::Descriptor> listening_;
  std::deque<Stranger> strangers_;  ///< in the order in which they came
  std::vector<Member> members_;
  std::string problem_;  ///< why an address could not be listened on
  std::string refused_;  ///< the last refusal, for the message about missing ranks
};

}  // namespace lockstep::control
