#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string_view>

#include "comm/communicator.h"
#include "device/device_communicator.h"
#include "device/device_rank_context.h"
#include "device/nccl_library.h"

namespace lockstep::inline v0_2::device {

/// One NCCL communicator. It is non-blocking: every call returns, also if another rank has ended.
class NcclComm {
 public:
  /// Ranks: all of host, each with a device of its own. host and context outlive this.
  /// Throws: BackendUnavailable on every rank if NCCL is missing, too old or refuses the devices.
  /// CommError as a collective of host.
  NcclComm(Communicator& host, const DeviceRankContext& context);
  /// Waits for other ranks' use of this rank's memory, for a short time at most.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Issues fn(library, comm, stream) as one group of NCCL calls. fn returns the first result that
  /// is not success.
  /// Throws: CommError if NCCL reports an error.
  using Calls = std::function<nccl::Result(const NcclLibrary&, nccl::Comm*, nccl::Stream*)>;
  void issue(std::string_view what, const Calls& calls);

  /// Throws: CommError if NCCL has reported an asynchronous error.
  void check();
  /// Begins to end all kernels of this communicator, which may wait for kernels of others. Any
  /// number of times. Returns the end, or no state if there is nothing to end.
  std::future<void> abort() noexcept;

 private:
  /// Polls until NCCL is no longer in progress. Returns the result.
  /// Throws: CommError if the host world has failed or a rank's process has ended. TimeoutError.
  nccl::Result settle(nccl::Result result);
  [[noreturn]] void fail(std::string_view what, nccl::Result result) const;

  const NcclLibrary& library_;
  const DeviceRankContext& context_;
  Communicator& host_;
  nccl::Comm* comm_ = nullptr;  ///< null after abort()
};

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
  NcclCommunicator(std::shared_ptr<DeviceRankContext> context, std::shared_ptr<Communicator> host)
      : DeviceCommunicator(std::move(context), std::move(host)),
        comm_(this->host(), this->context()) {}

  bool matches_by_tag() const override { return false; }
  std::future<void> abort() noexcept override { return comm_.abort(); }

 private:
  Work begin_on_device(Operation&& operation) override;
  void check_device() override { comm_.check(); }
  std::shared_ptr<HostedCommunicator> make(std::shared_ptr<Communicator> part) const override {
    return std::make_shared<NcclCommunicator>(shared_device_context(), std::move(part));
  }

  Work announce(const Operation& operation);
  /// Puts the operation on the stream. Returns memory that it uses, to be kept until it is
  /// complete.
  at::Tensor enqueue(const Operation& operation);
  at::Tensor all_reduce_as(const Operation& operation);
  at::Tensor reduce_scatter_of_counts(const Operation& operation);
  nccl::Result move_parts(const Operation& operation, const NcclLibrary& library, nccl::Comm* comm,
                          nccl::Stream* stream) const;

  NcclComm comm_;
};

}  // namespace lockstep::device
