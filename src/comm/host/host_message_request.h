#pragma once

#include <memory>

#include "comm/host/host_request.h"
#include "comm/host/world_layout.h"

namespace lockstep::inline v0_2::host {

class HostRankContext;

/// A send or recv on this rank. Messages of one ordered pair of members pass through its mailbox
/// one after the other. The sender offers an offset in the arena: of its input if that lies there,
/// else of a copy. The receiver copies from there and takes the message.
class MessageRequest final : public HostRequest {
 public:
  /// The copy in the arena that a send offers when its input is not there; null where none is
  /// needed.
  /// Throws: CommError when there is not enough memory.
  static std::shared_ptr<std::byte> copy_for(HostRankContext& context, const Operation& operation);

  MessageRequest(HostCommunicator& group, Operation&& operation, std::shared_ptr<std::byte> copy);

  /// Tells the other ranks that this rank has begun it.
  void count_as_begun();
  void advance() override;
  std::vector<int> missing() const override;

 private:
  void advance_send();
  void advance_recv();
  bool agree();

  Mailbox& mailbox_;
  std::uint64_t number_;  ///< of this message in its pair, from 1
  bool offered_ = false;
  std::shared_ptr<std::byte> copy_;
};

}  // namespace lockstep::host
