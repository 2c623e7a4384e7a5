#pragma once

#include <cstddef>
#include <memory>

#include "device/hosted_communicator.h"

namespace lockstep::inline v0_2::device {

/// The group of the ranks of a device group that exchanges memory of the host. It forwards all
/// operations to the host world.
class HostMemoryCommunicator final : public HostedCommunicator {
 public:
  HostMemoryCommunicator(std::shared_ptr<DeviceRankContext> context,
                         std::shared_ptr<Communicator> host)
      : HostedCommunicator(std::move(context), std::move(host)) {}

  std::string_view backend() const override { return host().backend(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override { return host().allocate(bytes); }
  std::optional<std::uint64_t> place_of(const void* memory) const override {
    return host().place_of(memory);
  }
  std::byte* at_place(std::uint64_t place) const override { return host().at_place(place); }
  std::shared_ptr<Communicator> split(int color, int key) override;

 private:
  Work begin(Operation&& operation) override { return forward(std::move(operation)); }
};

}  // namespace lockstep::device
