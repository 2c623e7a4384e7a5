#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/announcement.h"
#include "comm/message_matching.h"
#include "comm/messages/network.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::messages {

/// The answer of a receiver to an offer: the terms that it expected, and the number of its recv. If
/// it keeps the message for a later recv, they are the terms of the offer.
struct Reply {
  detail::MessageTerms terms;
  std::uint64_t number;
};

/// A send on this rank. Note [How send() and recv() agree] is in message_protocol.cpp. Refers to
/// the operation; must not be copied or moved.
class SendProtocol {
 public:
  SendProtocol(const MessageGroup& group, const Operation& operation)
      : group_(group), operation_(operation), offer_(detail::terms_of(operation)) {}
  SendProtocol(const SendProtocol&) = delete;
  SendProtocol& operator=(const SendProtocol&) = delete;

  /// Sends the terms and the payload, and begins to receive the reply.
  void begin();
  /// Compares the terms with those of the reply.
  /// Throws: Mismatch if they differ.
  void advance();
  bool complete() const { return complete_; }

  // As CollectiveProtocol:
  static bool is_queued() { return false; }
  std::vector<int> missing() const { return {operation_.peer}; }
  static std::chrono::nanoseconds worked() { return {}; }

 private:
  const MessageGroup& group_;
  const Operation& operation_;
  detail::MessageTerms offer_;
  Reply reply_{};
  int pending_terms_ = 2;  ///< the offer and the reply, while they are in transit
  bool payload_pending_ = false;
  bool complete_ = false;
};

/// A recv on this rank. Refers to the operation. It must exist until it is complete or withdrawn,
/// or until the transport has stopped.
class Receive {
 public:
  explicit Receive(const Operation& operation) : operation_(operation) {}
  Receive(const Receive&) = delete;
  Receive& operator=(const Receive&) = delete;

  const Operation& operation() const { return operation_; }
  bool complete() const { return complete_; }
  /// The member whose message it gets; any_source until one is matched.
  int source() const { return source_; }

 private:
  friend class ReceiveProtocol;

  const Operation& operation_;
  int source_ = any_source;
  bool complete_ = false;
};

/// The receives of one rank in a group over a transport. Note [How receives are matched] is in
/// message_matching.h, Note [How send() and recv() agree] in message_protocol.cpp.
class ReceiveProtocol {
 public:
  explicit ReceiveProtocol(const MessageGroup& group);
  ReceiveProtocol(const ReceiveProtocol&) = delete;
  ReceiveProtocol& operator=(const ReceiveProtocol&) = delete;

  /// Begins a receive.
  /// Throws: Mismatch if a message came before with other terms.
  void add(Receive& receive);
  /// Removes a receive that no message has matched. Returns whether it did.
  bool withdraw(const Receive& receive) { return matching_.withdraw(receive.operation()); }
  /// Takes the messages whose offers have arrived, and begins to receive other offers.
  /// Throws: Mismatch if the terms of a message differ from those of its receive.
  void advance();
  /// As MessageMatching.
  std::string describe_early(const Receive& receive) const;

 private:
  /// A message of a member. The transport keeps it while it receives or sends for it.
  struct Message : detail::TakenMessage {
    bool offered = false;        ///< whether its terms have arrived
    Receive* receive = nullptr;  ///< null while no receive expects it
    Reply reply{};
    int transfers = 0;  ///< of the payload and the reply that are in progress

    /// Ends the receive, if there is one and all transfers are complete.
    void finish();
  };
  using MessagePointer = std::shared_ptr<Message>;

  /// Begins to receive the next offer of a member, unless it has begun.
  void receive_offer(int source);
  /// Takes the next message of a member, if its offer has arrived. Returns whether it did.
  bool take_from(int source);
  void take(const MessagePointer& message);

  const MessageGroup& group_;
  detail::MessageMatching<Receive*, MessagePointer> matching_;
  std::vector<MessagePointer> offers_;  ///< the next one of each member; null for none
  MessagePointer wrong_;                ///< a message that no receive can take
};

}  // namespace lockstep::messages
