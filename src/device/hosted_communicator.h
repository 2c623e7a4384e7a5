#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <string_view>
#include <utility>

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

  /// Called once, by handle().
  virtual void begin_use() { context().add(*this); }

 private:
  /// Throws: CommError if the device's communication library reports an error.
  virtual void check_device() {}
  /// Throws: CommError if a rank that the operation waits for has left or ended. TimeoutError if it
  /// waits for longer than its limit.
  void check(const detail::TaskRequest& request) override;
  void finish() noexcept;

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
};

}  // namespace lockstep::device
