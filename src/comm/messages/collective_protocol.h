#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/announcement.h"
#include "comm/messages/transfer.h"
#include "comm/messages/transport.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::messages {

/// One collective on this rank, from its announcement to its result. Note [How a collective over
/// messages runs] is in collective_protocol.cpp. It does not move and refers to the operation.
class CollectiveProtocol {
 public:
  CollectiveProtocol(GroupTransport transport, const Operation& operation);
  CollectiveProtocol(const CollectiveProtocol&) = delete;
  CollectiveProtocol& operator=(const CollectiveProtocol&) = delete;

  /// Sends the announcements and begins to receive those of the other members.
  void announce();
  /// Compares the announcements once all have arrived, and reduces or copies inputs that came with
  /// them. Throws: Mismatch when members issue different collectives.
  void compare();
  /// After compare(): begins the transfer if there is one, and advances it.
  void advance();

  /// The transfer of the next collective may begin: all messages of this one have begun.
  bool lets_next_begin() const;
  bool complete() const { return complete_; }

  /// It waits for the collectives before it, not for a member.
  bool is_queued() const { return agreed_ && !eager_ && transfer_ == nullptr; }
  /// Members that have not done what this waits for.
  std::vector<int> missing() const;
  /// Time that went into sums.
  std::chrono::nanoseconds worked() const { return worked_; }

 private:
  const MessageGroup& group() const { return transport_.group(); }
  /// Bytes of the longest parcel: an announcement, followed by the sender's short input or the
  /// receiver's part of it.
  std::size_t parcel_bytes() const;
  std::byte* parcel_of(int member) const;
  std::size_t payload_bytes(int member) const;
  void fill(std::byte* payload, std::size_t bytes, int member) const;
  void agree() const;
  void finish_from_parcels();
  void finish_halves();
  const std::byte* payload_of(int member) const;

  GroupTransport transport_;
  const Operation& operation_;
  detail::Shape shape_;
  bool eager_;  ///< inputs are sent with the announcements
  bool agreed_ = false;
  bool complete_ = false;
  std::vector<std::vector<std::byte>> sent_;  ///< parcels to each member; one if all are the same
  int sending_ = 0;
  std::unique_ptr<std::byte[]> received_;  ///< a parcel of each member
  std::vector<bool> here_;                 ///< members whose parcel has arrived
  int absent_;                             ///< members whose parcel has not
  std::unique_ptr<Transfer> transfer_;
  std::chrono::nanoseconds worked_{};
};

}  // namespace lockstep::messages
