#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "comm/cost/cost.h"
#include "comm/messages/options.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::messages {

/// Members issued different operations. The text is the same on all members.
class Mismatch : public CommError {
 public:
  using CommError::CommError;
};

/// Non-blocking messages of bytes between ranks: the interface that the collectives of this folder
/// need from a network. A transport has no groups and no collectives.
///
/// Messages with the same sender, receiver and tag are received in the order in which they were
/// sent. The receiver's buffer has the length of the message. Only an announcement may be shorter
/// than its buffer. No message has 0 bytes. Every function may throw an error of the network.
class Transport {
 public:
  /// Called by progress() when a message is complete; bytes is the received length. It may begin
  /// other messages.
  using Done = std::function<void(std::size_t bytes)>;

  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Complete when the memory may be written again. This may be before the receiver has the
  /// message.
  virtual void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) = 0;
  virtual void receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) = 0;

  /// Advances messages, and calls Done for those that are complete. True if there were any.
  virtual bool progress() = 0;

  /// Abandons all messages after a failure. No Done is called any more.
  virtual void stop() noexcept = 0;

 protected:
  Transport() = default;
};

/// The purpose of a message of a group. Messages of the same group and channel between two ranks
/// arrive in order.
enum class Channel : int {
  announcements,  ///< of collectives, short inputs included
  parts,          ///< inputs of collectives, and partial sums
  results,        ///< results of collectives
  offers,         ///< the terms of send()
  replies,        ///< the terms of recv()
  payloads        ///< the data of send()
};

inline constexpr int channels = 6;

/// Tag 0 belongs to no group.
constexpr int tag_of(int group, Channel channel) {
  return 1 + group * channels + static_cast<int>(channel);
}

constexpr int most_groups(int last_tag) { return last_tag / channels - 1; }

/// The pieces in which a reduction sends its slices.
struct Pieces {
  std::size_t bytes = 512 << 10;  ///< bytes of the longest piece
  std::size_t window = 4;         ///< number of pieces of a slice in transit at the same time
  /// Collectives without a reduction send their parts in pieces, too.
  bool of_parts = false;
};

/// One rank's description of a group whose members exchange messages. All fields except rank are
/// the same on all members.
struct MessageGroup {
  int rank = 0;
  std::vector<int> members = {};  ///< world ranks in the order of the group
  int number = 0;                 ///< distinguishes its messages from those of other groups
  int first_number = 1;           ///< of the groups that programs make from the world
  Placement placement = {};       ///< of the members
  Algorithm algorithm = Algorithm::automatic;
  std::size_t eager_bytes = 0;  ///< longest input that is sent with the announcement
  Pieces pieces = {};

  int size() const { return static_cast<int>(members.size()); }
  int world_rank(int member) const { return members[static_cast<std::size_t>(member)]; }
  /// The number in error texts: 1, 2, …, and 0 for the world and groups of the library.
  int shown_number() const { return number < first_number ? 0 : number - first_number + 1; }
};

/// A transport with messages to members of a group, by channel. Refers to the group and the
/// transport.
class GroupTransport {
 public:
  GroupTransport(const MessageGroup& group, Transport& transport)
      : group_(&group), transport_(&transport) {}

  const MessageGroup& group() const { return *group_; }

  void send(const std::byte* data, std::size_t bytes, int member, Channel channel,
            Transport::Done done) const {
    transport_->send(data, bytes, group_->world_rank(member), tag_of(group_->number, channel),
                     std::move(done));
  }
  void receive(std::byte* data, std::size_t bytes, int member, Channel channel,
               Transport::Done done) const {
    transport_->receive(data, bytes, group_->world_rank(member), tag_of(group_->number, channel),
                        std::move(done));
  }

 private:
  const MessageGroup* group_;
  Transport* transport_;
};

}  // namespace lockstep::messages
