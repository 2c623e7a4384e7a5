#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/announcement.h"
#include "comm/messages/network.h"
#include "comm/messages/transfer.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::messages {

/// One collective on this rank, from its announcement to its result. Note [How a collective over
/// messages runs] is in collective_protocol.cpp. Refers to the operation; must not be copied or
/// moved.
class CollectiveProtocol {
 public:
  CollectiveProtocol(const MessageGroup& group, const Operation& operation);
  CollectiveProtocol(const CollectiveProtocol&) = delete;
  CollectiveProtocol& operator=(const CollectiveProtocol&) = delete;

  /// Sends the announcements and begins to receive those of the other members.
  void begin();
  /// Compares the announcements when all have arrived. If they include the inputs (eager), also
  /// computes the result. Members compare the collectives of a group in order.
  /// Throws: Mismatch if members issued different collectives.
  void compare();
  /// Call it after compare(): begins the transfer, if the inputs are not eager, and advances it.
  void advance();

  /// Whether the transfer of the next collective may begin: all messages of this one have begun.
  bool next_may_begin() const;
  bool complete() const { return complete_; }
  /// Whether the announcements of all members are equal.
  bool compared() const { return compared_; }

  /// Whether it waits for earlier collectives and not for a member.
  bool is_queued() const { return compared_ && !eager_ && transfer_ == nullptr; }
  /// Members that the collective waits for.
  std::vector<int> missing() const;
  /// Time in which this rank has reduced.
  std::chrono::nanoseconds worked() const { return worked_; }

 private:
  /// Bytes of the longest announcement message, rounded to its alignment: an announcement, followed
  /// by the payload. The payload is the sender's short input, or the receiver's part of it.
  std::size_t message_bytes() const;
  std::byte* message_of(int member) const;
  void write_payload(std::byte* payload, std::size_t bytes, int member) const;
  void compare_announcements() const;
  void finish_eager();
  void reduce_eager();
  const std::byte* payload_of(int member) const;

  const MessageGroup& group_;
  const Operation& operation_;
  detail::Shape shape_;
  bool eager_;  ///< whether inputs are sent with the announcements
  bool compared_ = false;
  bool complete_ = false;
  std::vector<std::vector<std::byte>>
      sent_;  ///< announcement messages to each member; one if all are equal
  std::unique_ptr<std::byte[]> received_;  ///< an announcement message of each member
  std::vector<int> pending_with_;          ///< announcements from and to each member in transit
  int pending_;                            ///< their sum
  std::unique_ptr<Transfer> transfer_;
  std::chrono::nanoseconds worked_{};
};

}  // namespace lockstep::messages
