#pragma once

#include <memory>

#include "comm/host/host_request.h"
#include "comm/host/message_steps.h"
#include "comm/host/world_layout.h"

namespace lockstep::inline v0_2::host {

class HostRankContext;

/// A send or recv on this rank. Each ordered pair of members has a mailbox, which one message at a
/// time uses. The sender writes the offset of its input in the arena, or of a copy of the input.
/// The receiver copies the data and marks the message as received.
class MessageRequest final : public HostRequest {
 public:
  /// The copy of a send's input in the arena; null if the input is in the arena, and for a recv.
  /// Throws: CommError if memory is short.
  static std::shared_ptr<std::byte> copy_for(HostRankContext& context, const Operation& operation);

  MessageRequest(HostCommunicator& group, Operation&& operation, std::shared_ptr<std::byte> copy);

  /// Publishes that this rank has begun the operation, for the detection of deadlocks.
  void count_as_begun();
  void advance() override;
  std::vector<int> missing() const override;

 private:
  void offer(Mailbox& mailbox) const;
  bool take(const Mailbox& mailbox);
  bool compare_terms();

  Mailbox& mailbox_;
  MessageSteps<StdAtomics> steps_;
  std::shared_ptr<std::byte> copy_;
};

}  // namespace lockstep::host
