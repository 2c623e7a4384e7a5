#pragma once

#include <memory>

#include "lockstep/comm/host/in_flight.h"
#include "lockstep/comm/host/layout.h"

namespace lockstep::host {

class Endpoint;

/// A send or recv on this rank. Messages of one ordered pair of members pass through its mailbox
/// one after the other: the sender offers an offset in the arena (a copy of its input, unless that
/// lies there), the receiver copies and takes.
class MessageFlight final : public InFlight {
 public:
  /// What a send offers when its input is not in the arena; null where none is needed.
  /// Throws: CommError when there is not enough memory.
  static std::shared_ptr<std::byte> copy_for(Endpoint& endpoint, const Operation& operation);

  MessageFlight(HostCommunicator& group, Operation&& operation, std::shared_ptr<std::byte> copy);

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
