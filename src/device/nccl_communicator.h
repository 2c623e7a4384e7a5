#pragma once

#include <future>
#include <memory>

#include "device/device_communicator.h"
#include "device/nccl_comm.h"

namespace lockstep::inline v0_2::device {

/// A device group whose tensors are exchanged by NCCL.
///
/// The ranks also announce each operation in the host world. Operations that differ between ranks,
/// missing ranks and timeouts are therefore errors that name their cause. Work::wait() does not
/// wait for the announcement.
///
/// Operations run on the device in the order in which they are issued, also messages: two ranks
/// that both send before they receive wait for each other until the timeout. So do ranks that issue
/// operations of two groups in different orders. Sums are in the order that NCCL chooses.
class NcclCommunicator final : public DeviceCommunicator {
 public:
  /// Ranks: all of host.
  /// Throws: as NcclComm::NcclComm().
  NcclCommunicator(std::shared_ptr<DeviceRankContext> context, std::shared_ptr<Communicator> host,
                   std::shared_ptr<Communicator> host_memory);

  bool matches_by_tag() const override { return false; }
  std::future<void> abort() noexcept override { return comm_.abort(); }

 private:
  Work begin_on_device(Operation&& operation) override;
  void check_device() override { comm_.check(); }
  std::shared_ptr<DeviceCommunicator> make(
      std::shared_ptr<Communicator> part, std::shared_ptr<Communicator> host_memory) const override;

  Work announce(const Operation& operation);
  /// Puts the operation on the stream. Returns memory that it uses, to be kept until it is
  /// complete.
  at::Tensor enqueue(const Operation& operation);
  at::Tensor all_reduce_as(const Operation& operation);
  at::Tensor reduce_scatter_of_counts(const Operation& operation);
  void move_parts(const Operation& operation);

  NcclComm comm_;
};

}  // namespace lockstep::device
