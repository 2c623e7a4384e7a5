#pragma once

#include <cstdint>
#include <memory>

#include "comm/announcement.h"
#include "comm/messages/transport.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::messages {

/// The terms of the other side of a message.
struct TermsOfPeer {
  detail::MessageTerms terms{};
  bool received = false;
};

/// Begins to receive the terms of the peer's next send(). A receiver may look at them before recv()
/// begins, which gets them then.
std::shared_ptr<TermsOfPeer> receive_offer(const GroupTransport& transport, int peer);

/// A send or recv on this rank. Note [How send() and recv() agree] is in
/// point_to_point_protocol.cpp. Refers to the operation; must not be copied or moved.
class PointToPointProtocol {
 public:
  /// received is the number of accepted messages from the peer, shared by all receives from it. It
  /// must outlive this object. offer: what receive_offer() returned for this recv, if it was
  /// called.
  PointToPointProtocol(GroupTransport transport, const Operation& operation,
                       std::uint64_t& received, std::shared_ptr<TermsOfPeer> offer = {});
  PointToPointProtocol(const PointToPointProtocol&) = delete;
  PointToPointProtocol& operator=(const PointToPointProtocol&) = delete;

  /// Sends this rank's terms and, for a send, the payload; begins to receive the other side's
  /// terms.
  void begin();
  /// Compares the terms when both have been exchanged; a recv then receives the payload.
  /// Throws: Mismatch if the terms differ.
  void advance();
  bool complete() const { return complete_; }

 private:
  bool sends() const { return operation_.collective == Collective::send; }
  std::size_t bytes() const;
  void compare_terms() const;

  GroupTransport transport_;
  const Operation& operation_;
  std::uint64_t& received_;
  detail::MessageTerms own_;
  std::shared_ptr<TermsOfPeer> theirs_;
  bool own_terms_pending_ = false;
  int payloads_pending_ = 0;
  bool compared_ = false;
  bool complete_ = false;
};

}  // namespace lockstep::messages
