#pragma once

#include <cstdint>

#include "comm/host/world_layout.h"

namespace lockstep::inline v0_2::host {

/// The steps of one message between two members, on the sender or the receiver. One message at a
/// time uses the mailbox.
template <class Atomics>
class MessageSteps {
 public:
  using Mailbox = BasicMailbox<Atomics>;

  /// number: of the message between the two members, from 1.
  MessageSteps(Mailbox& mailbox, std::uint64_t number) : mailbox_(mailbox), number_(number) {}

  /// Publishes that this rank has begun the send or recv, for the detection of deadlocks.
  void begin_send() { begin(mailbox_.sends_begun); }
  void begin_recv() { begin(mailbox_.recvs_begun); }

  /// Advances a send. write(mailbox) writes the place and the terms of the message, wake() wakes
  /// the receiver. Returns whether the receiver has taken the message.
  template <class Write, class Wake>
  bool advance_send(const Write& write, const Wake& wake) {
    const auto taken = mailbox_.taken.load(Atomics::order(Access::message_taken));
    if (offered_) return taken >= number_;
    if (taken + 1 != number_) return false;  // the mailbox still has the previous message
    write(mailbox_);
    mailbox_.sent.store(number_, Atomics::order(Access::message_offer));
    offered_ = true;
    wake();
    return false;
  }

  /// Advances a recv. take(mailbox) copies the data, and returns false if the terms differ: the
  /// world has failed. wake() wakes the sender. Returns whether the message was received.
  template <class Take, class Wake>
  bool advance_recv(const Take& take, const Wake& wake) {
    if (mailbox_.sent.load(Atomics::order(Access::message_offered)) != number_ || !take(mailbox_)) {
      return false;
    }
    mailbox_.taken.store(number_, Atomics::order(Access::message_take));
    wake();
    return true;
  }

 private:
  void begin(typename Atomics::template Atomic<std::uint64_t>& begun) {
    begun.store(number_, Atomics::order(Access::message_begin));
  }

  Mailbox& mailbox_;
  std::uint64_t number_;
  bool offered_ = false;
};

/// Whether the mailbox has a message for which the receiver has not begun a recv. For the receiver.
template <class Atomics>
bool has_pending_message(const BasicMailbox<Atomics>& mailbox) {
  const auto taken = mailbox.taken.load(Atomics::order(Access::pending_taken));
  return mailbox.sent.load(Atomics::order(Access::pending_offered)) != taken &&
         mailbox.recvs_begun.load(Atomics::order(Access::pending_begun)) == taken;
}

}  // namespace lockstep::host
