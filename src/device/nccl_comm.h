#pragma once

#include <functional>
#include <future>
#include <string_view>

#include "comm/communicator.h"
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

}  // namespace lockstep::device
