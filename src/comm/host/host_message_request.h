#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/announcement.h"
#include "comm/host/host_request.h"
#include "comm/host/message_steps.h"
#include "comm/host/world/world_layout.h"

namespace lockstep::inline v0_2::host {

class HostRankContext;

/// A send of this rank. Each ordered pair of members has a mailbox, which one message at a time
/// uses. The sender writes the offset of its input in the arena, or of a copy of the input.
class SendRequest final : public HostRequest {
 public:
  /// The copy of the input in the arena; null if the input is in the arena.
  /// Throws: CommError if memory is short.
  static std::shared_ptr<std::byte> copy_for(HostRankContext& context, const Operation& operation);

  SendRequest(HostCommunicator& group, Operation&& operation, std::shared_ptr<std::byte> copy);

  /// Publishes that this rank has begun the operation, for the detection of deadlocks.
  void count_as_begun() { steps_.begin(); }
  void advance() override;
  std::vector<int> missing() const override;

 private:
  void offer(Mailbox& mailbox) const;

  SendSteps<StdAtomics> steps_;
  std::shared_ptr<std::byte> copy_;
};

/// A receive of this rank. The group's Inbox completes it.
class RecvRequest final : public HostRequest {
 public:
  using HostRequest::HostRequest;

  void advance() override;
  /// For a receive from any source: the ranks that may still send.
  std::vector<int> missing() const override;
  /// Names messages with other tags that this rank has got.
  std::string note() const override;

  /// Copies a message from this member. Returns false if its terms differ from those of the
  /// receive: the world has failed.
  bool copy(int source, const detail::MessageTerms& terms, const std::byte* data);
  /// Completes the receive after copy().
  void finish(int source);

 private:
  bool withdraw() override;
};

}  // namespace lockstep::host
