#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "lockstep/comm/control/interfaces.h"
#include "lockstep/comm/control/member.h"
#include "lockstep/comm/control/offer.h"
#include "lockstep/comm/control/settings.h"

namespace lockstep::control {

/// Rank 0's side of the ranks' meeting: it listens from its construction until all have come. Who
/// does not know the token is refused and else ignored; who knows it and is of another version or
/// world ends the meeting for everybody.
class Gathering {
 public:
  /// Throws: CommError when the interface cannot be used or nothing can be listened on.
  explicit Gathering(Settings settings);

  /// What the others must be told.
  const Offer& offer() const { return offer_; }

  /// Waits for all others, and tells them that all are here. Throws: TimeoutError naming the ranks
  /// that did not come; CommError when two say that they are the same rank, when versions or
  /// numbers of ranks differ, and when one that came has gone. All who came raise the same.
  std::vector<Member> wait();

 private:
  using Clock = std::chrono::steady_clock;

  /// Who has come and not said anything yet.
  struct Stranger {
    Connection connection;
    Clock::time_point since = Clock::now();
  };

  void look();
  /// Listens on what can be listened on of these.
  void listen_on(const Interface& interface);
  bool listen_on(const Address& address);
  void await_news(Clock::time_point until);
  void let_come(int listening);
  /// Hears who it is; false when it is a stranger no more.
  bool hear(Stranger& stranger);
  void take(Stranger& stranger, const std::string& hello);
  void watch(Member& member);
  void refuse(Stranger& stranger, const std::string& why);
  /// Ends the meeting for all who have come. Throws.
  [[noreturn]] void end(bool timeout, const std::string& text);
  void tell_all(const Frame& frame);
  std::string missing() const;

  Settings settings_;
  Offer offer_;
  std::vector<detail::Descriptor> listening_;
  std::deque<Stranger> strangers_;  ///< in the order in which they came
  std::vector<Member> members_;
  std::string problem_;  ///< why an address could not be listened on
  std::string refused_;  ///< the last who was, for the message of those who never came
};

}  // namespace lockstep::control
