#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "comm/messages/algorithm.h"
#include "comm/messages/transport.h"
#include "comm/placement.h"

namespace lockstep::inline v0_2::messages {

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
