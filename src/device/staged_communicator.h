#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "device/device_communicator.h"

namespace lockstep::inline v0_2::device {

/// A device group whose tensors are exchanged through memory of the host: it copies inputs to
/// pinned memory, exchanges them in the host world, and copies the results back. Both copies are on
/// the CommStream. Ranks may share a device. wait() blocks until the exchange between the hosts is
/// complete.
/// Results have the bits of the host world.
class StagedCommunicator final : public DeviceCommunicator {
 public:
  StagedCommunicator(std::shared_ptr<DeviceRankContext> context, std::shared_ptr<Communicator> host)
      : DeviceCommunicator(std::move(context), std::move(host)) {}
  /// Waits for the last copies, which use memory of the host.
  ~StagedCommunicator() override;

  std::size_t pending() const override { return DeviceCommunicator::pending() + copying_.size(); }

 private:
  struct Transfer;

  Work begin_on_device(Operation&& operation) override;
  void check_device() override;
  std::shared_ptr<HostedCommunicator> make(std::shared_ptr<Communicator> part) const override {
    return std::make_shared<StagedCommunicator>(shared_device_context(), std::move(part));
  }

  at::Tensor pinned(std::size_t count, DType dtype) const;
  void copy_to_host(const Operation& operation, Transfer& transfer);
  detail::Task exchange(detail::TaskRequest& request, std::shared_ptr<Transfer> transfer);
  Work exchange_on_host(const Operation& operation, const Transfer& transfer);
  void copy_to_device(const Operation& operation, const std::shared_ptr<Transfer>& transfer);

  detail::Turns exchanges_;  ///< in the order of the operations, as on every rank
  /// Transfers whose last copy is on the stream and may not be complete.
  std::deque<std::shared_ptr<Transfer>> copying_;
};

}  // namespace lockstep::device
