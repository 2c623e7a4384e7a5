#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <future>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include "comm/operation.h"
#include "comm/tasks/task_communicator.h"
#include "device/device_rank_context.h"
#include "lockstep/work.h"

namespace lockstep::inline v0_2::device {

/// Base of the communicators of a DeviceRankContext. Its ranks are also a group of the host world.
class HostedCommunicator : public detail::TaskCommunicator {
 public:
  std::string_view backend() const override { return context().backend(); }
  int world_rank(int rank) const override { return host_->world_rank(rank); }
  bool matches_by_tag() const override { return host_->matches_by_tag(); }
  DeviceRankContext& context() const override {
    return static_cast<DeviceRankContext&>(TaskCommunicator::context());
  }

  /// The ranks of this group in the host world.
  Communicator& host() const { return *host_; }

  // Called by the context.
  void poll() override;
  /// Begins to end the collectives that run on the device. Called after the world has failed, any
  /// number of times. Returns the end, or no state if there is nothing to end.
  virtual std::future<void> abort() noexcept { return {}; }

  /// Adds the group to its context and returns a handle to it for the program. The destructor of
  /// the handle waits until the operations of the group are complete, which hold the group. Under a
  /// CallGuard, or before the progress thread is started.
  static std::shared_ptr<Communicator> handle(std::shared_ptr<HostedCommunicator> group);

 protected:
  /// host: the ranks of this group in the host world.
  HostedCommunicator(std::shared_ptr<DeviceRankContext> context,
                     std::shared_ptr<Communicator> host);

  std::shared_ptr<DeviceRankContext> shared_device_context() const {
    return std::static_pointer_cast<DeviceRankContext>(shared_context());
  }
  /// Runs the operation in the host world.
  Work forward(Operation&& operation);

  /// As split(). Called when all members are in split(): a split of the host world blocks without
  /// advancing other operations.
  std::shared_ptr<Communicator> split_host(int color, int key);
  /// Called once, by handle().
  virtual void begin_use() { context().add(*this); }

 private:
  /// Throws: CommError if the device's communication library reports an error.
  virtual void check_device() {}
  /// Throws: CommError if a rank that the operation waits for has left or ended. TimeoutError if it
  /// waits for longer than its limit.
  void check(const detail::TaskRequest& request) override;
  void finish() noexcept;
  /// The group of the same kind for part, the ranks of a new group in the host world.
  virtual std::shared_ptr<HostedCommunicator> make(std::shared_ptr<Communicator> part) const = 0;

  std::shared_ptr<Communicator> host_;
};

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
  std::shared_ptr<HostedCommunicator> make(std::shared_ptr<Communicator> part) const override {
    return std::make_shared<HostMemoryCommunicator>(shared_device_context(), std::move(part));
  }
};

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
  /// host: the ranks of this group in the host world. Collective over host.
  DeviceCommunicator(std::shared_ptr<DeviceRankContext> context,
                     std::shared_ptr<Communicator> host);

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
  void begin_use() override;

  /// Before begin_use(), the second group of the ranks in the host world.
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
  std::vector<int> missing() const override;

 private:
  /// Takes the source of a receive from any source.
  void take_source();

  std::shared_ptr<detail::TaskRequest> request_;
  std::shared_ptr<const c10::Event> done_;
  CommStream stream_;
  Wait wait_;
};

/// The dtypes of tensors, in the order of DType.
inline constexpr std::array scalar_types{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                         at::kChar,  at::kByte,   at::kInt,  at::kLong,
                                         at::kShort, at::kBool};
static_assert(scalar_types.size() == std::size(all_dtypes));

/// The dtype of tensors with these elements.
constexpr at::ScalarType scalar_type(DType dtype) {
  return scalar_types[static_cast<std::size_t>(dtype)];
}

}  // namespace lockstep::device
