#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/announcement.h"
#include "comm/communicator.h"
#include "comm/host/host_message_request.h"
#include "comm/host/world_layout.h"

namespace lockstep::inline v0_2::host {

class HostCommunicator;

/// The receives of one rank in a group, and the messages that came before their receives. Note [How
/// receives are matched] is in inbox.cpp.
class Inbox {
 public:
  explicit Inbox(HostCommunicator& group);

  /// Begins a receive: completes it by a message that came earlier, or adds it to the open ones.
  void add(const std::shared_ptr<RecvRequest>& receive);
  /// Removes an open receive. Returns whether it was open.
  bool withdraw(const RecvRequest& receive);
  bool has_open() const { return !receives_.empty(); }
  /// Takes messages from the mailboxes of members from which this rank has an open receive.
  void advance();
  /// Publishes the number of open receives for each member, for the detection of deadlocks.
  void publish() const;

  /// The first message from the member that no receive has matched.
  std::optional<PendingMessage> pending(int source) const;
  /// "; not received: …" for the messages with other tags that the receive would take; "" for none.
  std::string unmatched_for(const RecvRequest& receive) const;
  /// Forgets the open receives.
  void clear();

 private:
  /// A copy of a message.
  struct Early {
    int source;
    detail::MessageTerms terms;
    std::unique_ptr<std::byte[]> data;
  };
  using Receives = std::vector<std::shared_ptr<RecvRequest>>;

  Mailbox& mailbox(int source) const;
  std::size_t open(int source) const { return from_any_ + open_[static_cast<std::size_t>(source)]; }
  void take_from(int source);
  bool keep(int source, const detail::MessageTerms& terms, const std::byte* data);
  Receives::iterator match(int source, std::uint32_t tag);
  void remove(Receives::iterator receive);

  HostCommunicator& group_;
  Receives receives_;              ///< open, in the order in which they were issued
  std::vector<std::size_t> open_;  ///< open receives from each member
  std::vector<int> sources_;       ///< members with such receives
  std::size_t from_any_ = 0;       ///< open receives from any source
  int first_ = 0;                  ///< the member whose mailbox is read first for any source
  std::deque<Early> early_;        ///< in the order in which they came
};

}  // namespace lockstep::host
