#pragma once

#include <cstdint>
#include <vector>

#include "comm/mpi/mpi_request.h"

namespace lockstep::inline v0_2::mpi {

/// A send or recv on this rank. The sender's offer says what comes; its payload follows, once the
/// receiver has compared the offer with what it expects.
class MessageRequest final : public MpiRequest {
 public:
  MessageRequest(MpiCommunicator& group, Operation&& operation);

  /// Begins the messages that need wait for nothing.
  void begin();
  void advance() override;
  std::vector<int> missing() const override;

 private:
  struct Offer {
    std::uint64_t count;
    std::uint32_t tag;
    DType dtype;
  };

  std::size_t bytes() const;
  bool agree();

  Offer offer_{};
  std::size_t under_way_ = 0;
  bool payload_begun_ = false;
};

}  // namespace lockstep::mpi
