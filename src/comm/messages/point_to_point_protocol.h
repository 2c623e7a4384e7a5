#pragma once

#include <cstdint>

#include "comm/announcement.h"
#include "comm/messages/transport.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::messages {

/// A send or recv on this rank. Note [How send() and recv() agree] is in
/// point_to_point_protocol.cpp. It does not move and refers to the operation.
class PointToPointProtocol {
 public:
  /// received counts the messages from the peer that its receivers have accepted. It outlives this.
  PointToPointProtocol(GroupTransport transport, const Operation& operation,
                       std::uint64_t& received);
  PointToPointProtocol(const PointToPointProtocol&) = delete;
  PointToPointProtocol& operator=(const PointToPointProtocol&) = delete;

  /// Begins the messages that need not wait for anything.
  void begin();
  /// Throws: Mismatch when the two ends do not agree.
  void advance();
  bool complete() const { return complete_; }

 private:
  bool sends() const { return operation_.collective == Collective::send; }
  std::size_t bytes() const;
  void agree() const;

  GroupTransport transport_;
  const Operation& operation_;
  std::uint64_t& received_;
  detail::MessageTerms own_;
  detail::MessageTerms theirs_{};
  int terms_pending_ = 0;
  int payloads_pending_ = 0;
  bool agreed_ = false;
  bool complete_ = false;
};

}  // namespace lockstep::messages
