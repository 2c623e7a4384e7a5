#pragma once

#include <cstdint>

#include "comm/host/world/world_layout.h"

namespace lockstep::inline v0_2::host {

/// The steps of one send between two members. One message at a time uses the mailbox.
template <class Atomics>
class SendSteps {
 public:
  using Mailbox = BasicMailbox<Atomics>;

  /// number: of the message between the two members, from 1.
  SendSteps(Mailbox& mailbox, std::uint64_t number) : mailbox_(mailbox), number_(number) {}

  /// Publishes that this rank has begun the send, for the detection of deadlocks.
  void begin() { mailbox_.sends_begun.store(number_, Atomics::order(Access::message_begin)); }

  /// Advances the send. write(mailbox) writes the place and the terms of the message, wake() wakes
  /// the receiver. Returns whether the receiver has taken the message.
  template <class Write, class Wake>
  bool advance(const Write& write, const Wake& wake) {
    const auto taken = mailbox_.taken.load(Atomics::order(Access::message_taken));
    if (offered_) return taken >= number_;
    if (taken + 1 != number_) return false;  // the mailbox still has the previous message
    write(mailbox_);
    mailbox_.sent.store(number_, Atomics::order(Access::message_offer));
    offered_ = true;
    wake();
    return false;
  }

 private:
  Mailbox& mailbox_;
  std::uint64_t number_;
  bool offered_ = false;
};

/// Whether the mailbox has a message, whose place and terms may then be read. For the receiver.
template <class Atomics>
bool has_message(const BasicMailbox<Atomics>& mailbox) {
  return mailbox.sent.load(Atomics::order(Access::message_offered)) !=
         mailbox.taken.load(Atomics::order(Access::message_taken_by_self));
}

/// Publishes that the receiver has copied the message of the mailbox. wake() wakes the sender.
template <class Atomics, class Wake>
void take_message(BasicMailbox<Atomics>& mailbox, const Wake& wake) {
  const auto taken = mailbox.taken.load(Atomics::order(Access::message_taken_by_self));
  mailbox.taken.store(taken + 1, Atomics::order(Access::message_take));
  wake();
}

/// Publishes how many receives of the receiver the sender's next message may complete, for the
/// detection of deadlocks. After take_message(), if one of them has ended.
template <class Atomics>
void set_open_recvs(BasicMailbox<Atomics>& mailbox, std::uint64_t count) {
  mailbox.open_recvs.store(count, Atomics::order(Access::message_begin));
}

}  // namespace lockstep::host
