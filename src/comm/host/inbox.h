#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "comm/announcement.h"
#include "comm/communicator.h"
#include "comm/host/host_request.h"
#include "comm/host/world/world_layout.h"
#include "comm/message_matching.h"

namespace lockstep::inline v0_2::host {

class HostCommunicator;

/// The receives of one rank in a group, and the messages that came before their receives. Note [How
/// receives are matched] is in message_matching.h.
class Inbox {
 public:
  explicit Inbox(HostCommunicator& group);

  /// Begins a receive: completes it by a message that came earlier, or adds it to the open ones.
  void add(const std::shared_ptr<RecvRequest>& receive);
  /// Removes an open receive. Returns whether it was open.
  bool withdraw(const RecvRequest& receive) { return matching_.withdraw(receive.operation()); }
  bool has_open() const { return matching_.has_open(); }
  /// Takes messages from the mailboxes of members from which this rank has an open receive.
  void advance();
  /// Publishes the number of open receives for each member, for the detection of deadlocks.
  void publish() const;

  /// As MessageMatching.
  std::string describe_early(const RecvRequest& receive) const {
    return matching_.describe_early(receive.operation(),
                                    [this](int member) { return world_rank(member); });
  }
  /// Forgets the open receives.
  void clear() { matching_.close_all(); }

 private:
  Mailbox& mailbox(int source) const;
  int world_rank(int member) const;
  /// Takes the message of the mailbox. Returns whether there was one.
  bool take_from(int source);
  bool keep(int source, const detail::MessageTerms& terms, const std::byte* data);

  HostCommunicator& group_;
  detail::MessageMatching<std::shared_ptr<RecvRequest>, std::unique_ptr<detail::TakenMessage>>
      matching_;
};

}  // namespace lockstep::host
