#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/announcement.h"
#include "comm/messages/message_protocol.h"
#include "comm/messages/network.h"
#include "comm/messages/transfer.h"
#include "comm/operation.h"

namespace lockstep::inline v0_2::messages {

/// A collective of this rank, from its announcement to its result. Note [How a collective over
/// messages runs] is in collective_protocol.cpp.
class CollectiveRequest final : public MessageRequest {
 public:
  CollectiveRequest(MessageCommunicator& group, Operation&& operation);

  /// Sends the announcements and begins to receive those of the other members.
  void begin();
  /// Compares the announcements when all have arrived. If they include the inputs (eager), also
  /// computes the result. Members compare the collectives of a group in order.
  /// Throws: Mismatch if members issued different collectives.
  void compare();
  /// After compare(): begins the transfer, if the inputs are not eager, and advances it.
  void advance() override;

  /// Whether the transfer of the next collective may begin: all messages of this one have begun.
  bool next_may_begin() const;
  /// Whether the announcements of all members are equal.
  bool compared() const { return compared_; }

  /// If it waits for earlier collectives and not for a member, the ranks that these wait for.
  std::vector<int> missing() const override;

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
  detail::Shape shape_;
  bool eager_;  ///< whether inputs are sent with the announcements
  bool compared_ = false;
  std::vector<std::vector<std::byte>>
      sent_;  ///< announcement messages to each member; one if all are equal
  std::unique_ptr<std::byte[]> received_;  ///< an announcement message of each member
  std::vector<int> pending_with_;          ///< announcements from and to each member in transit
  int pending_;                            ///< their sum
  std::unique_ptr<Transfer> transfer_;
};

}  // namespace lockstep::messages
