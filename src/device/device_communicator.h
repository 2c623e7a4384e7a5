#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/operation.h"
#include "device/hosted_communicator.h"

namespace lockstep::inline v0_2::device {

/// One rank's communicator of a group that exchanges tensors of a device.
///
/// Operations run on the rank's CommStream, after the work that the current stream has when they
/// are issued. Work::wait() makes the current stream wait for the operation. The host does not wait
/// for the device.
class DeviceCommunicator : public HostedCommunicator {
 public:
  c10::Device device() const { return context().stream().device(); }
  /// The same ranks, exchanging memory of the host.
  const std::shared_ptr<Communicator>& host_memory() const { return host_memory_; }

  /// Whether this rank has launched collectives or messages on the group's device in other groups.
  /// They wait there for other ranks, so all ranks must launch those of all groups in one order.
  /// False for a group on the CPU.
  static bool launched_elsewhere(const Communicator& group);

  std::shared_ptr<std::byte> allocate(std::size_t bytes) final;
  std::shared_ptr<Communicator> split(int color, int key) final;

 protected:
  /// host: the ranks of this group in the host world. host_memory: the same ranks, as a second
  /// group.
  DeviceCommunicator(std::shared_ptr<DeviceRankContext> context, std::shared_ptr<Communicator> host,
                     std::shared_ptr<Communicator> host_memory);

  const CommStream& stream() const { return context().stream(); }
  /// Call it when an operation is launched that waits on the device for other ranks.
  void count_launch() {
    ++launched_;
    context().count_launch();
  }
  /// The elements from data on, as a tensor without ownership. Memory of the device.
  at::Tensor on_device(const void* data, std::size_t count, DType dtype) const;

 private:
  Work begin(Operation&& operation) final;
  void multiply(const std::byte* input, std::byte* output, std::size_t count, DType dtype,
                double factor) final;
  /// Begins an operation other than a barrier, in the order of the current stream.
  virtual Work begin_on_device(Operation&& operation) = 0;
  /// Creates the group of the same kind for part, the ranks of a new group in the host world.
  virtual std::shared_ptr<DeviceCommunicator> make(
      std::shared_ptr<Communicator> part, std::shared_ptr<Communicator> host_memory) const = 0;

  void begin_use() override;

  std::shared_ptr<HostedCommunicator> host_memory_group_;  ///< until begin_use()
  std::shared_ptr<Communicator> host_memory_;
  std::uint64_t launched_ = 0;
};

/// The implementation of a Work in a device group. wait() blocks the current stream.
class DeviceRequest final : public detail::Request {
 public:
  /// What the host waits for in wait(), before the current stream waits for the event.
  enum class Wait {
    nothing,  ///< the whole operation is on the CommStream already
    request   ///< the request puts its last copy on the CommStream when it completes
  };

  /// done: the event that the current stream waits for. It is recorded once the whole operation is
  /// on the CommStream.
  DeviceRequest(std::shared_ptr<detail::TaskRequest> request,
                std::shared_ptr<const c10::Event> done, const CommStream& stream, Wait wait)
      : request_(std::move(request)), done_(std::move(done)), stream_(stream), wait_(wait) {}

  bool complete() const override { return wait_ == Wait::nothing || request_->complete(); }
  bool test() override;
  void wait() override;
  void abandon() noexcept override;
  void check() override { request_->check(); }
  std::vector<int> missing() const override { return request_->missing(); }

 private:
  /// Takes the source of a receive from any source.
  void take_source();

  std::shared_ptr<detail::TaskRequest> request_;
  std::shared_ptr<const c10::Event> done_;
  CommStream stream_;
  Wait wait_;
};

/// The dtype of tensors with these elements.
at::ScalarType scalar_type(DType dtype);

}  // namespace lockstep::device
