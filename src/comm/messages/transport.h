#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "comm/messages/algorithm.h"
#include "comm/placement.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::messages {

/// Members issued operations that do not belong together. Its text is the same on all members that
/// compare them.
class Mismatch : public CommError {
 public:
  using CommError::CommError;
};

/// Non-blocking messages of bytes between ranks: all that the collectives of this folder need of a
/// network. A transport has no groups and no collectives.
///
/// Messages of one pair of ranks and one tag are received in the order in which they were sent. The
/// receiver offers a buffer of the message's length. Only an announcement may be shorter than its
/// buffer, and only where MessageGroup::eager_bytes is not 0. No message has 0 bytes. Errors are
/// thrown by any function.
class Transport {
 public:
  /// Called by progress() once a message is complete; bytes is the received length. It may begin
  /// other messages.
  using Done = std::function<void(std::size_t bytes)>;

  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Complete once the memory may be written again, which need not wait for the receiver.
  virtual void send(const std::byte* data, std::size_t bytes, int to, int tag, Done done) = 0;
  virtual void receive(std::byte* data, std::size_t bytes, int from, int tag, Done done) = 0;

  /// Moves bytes, and calls the Done of messages that are complete. True if any was. A transport
  /// that cannot poll blocks until a message is complete, and waits for receives before sends.
  virtual bool progress() = 0;

  /// Stops waiting for any message, after a failure. No Done is called any more.
  virtual void stop() noexcept = 0;

 protected:
  Transport() = default;
};

/// The purpose of a message of a group. Group and channel identify a stream of messages between two
/// ranks; within it messages arrive in order.
enum class Channel : int {
  announcements,  ///< of collectives, short inputs included
  parts,          ///< inputs of collectives, and partial sums
  results,        ///< what became of them
  offers,         ///< the terms of send()
  replies,        ///< the terms of recv()
  payloads        ///< what send() sends
};

inline constexpr int channels = 6;

/// Tag 0 belongs to no group.
constexpr int tag_of(int group, Channel channel) {
  return 1 + group * channels + static_cast<int>(channel);
}

constexpr int most_groups(int last_tag) { return last_tag / channels - 1; }

/// How a reduction cuts its slices.
struct Pieces {
  std::size_t bytes = 512 << 10;  ///< of the longest
  std::size_t window = 4;         ///< how many of a slice are sent at once
};

/// One rank's view of a group whose members exchange messages. All members have the same settings.
struct MessageGroup {
  int rank = 0;
  std::vector<int> members = {};  ///< world ranks in the order of the group
  int number = 0;                 ///< tells its messages from those of other groups
  Placement placement = {};       ///< of the members
  Algorithm algorithm = Algorithm::automatic;
  std::size_t eager_bytes = 0;  ///< longest input that an announcement includes
  Pieces pieces = {};

  int size() const { return static_cast<int>(members.size()); }
  int world_rank(int member) const { return members[static_cast<std::size_t>(member)]; }
};

/// A transport as a group uses it: messages go to a member, over a channel. It refers to both.
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
