#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>

#include "comm/communicator.h"
#include "comm/rank_context.h"
#include "device/comm_stream.h"

namespace lockstep::inline v0_2::device {

/// One rank's state in a world that exchanges tensors of a device. The ranks also form a host
/// world, which exchanges memory of the host. The host world is used only under a CallGuard of this
/// context or its lock(). A failure of the host world ends this world, and vice versa.
///
/// A progress thread advances operations while the program computes or waits for its device. It
/// detects ranks that have ended, timeouts and errors of the device's communication library.
class DeviceRankContext final : public detail::RankContext {
 public:
  /// backend: the name in error texts.
  DeviceRankContext(std::string_view backend, std::shared_ptr<Communicator> host_world,
                    c10::Device device, std::chrono::milliseconds timeout);
  ~DeviceRankContext() { stop_thread(); }

  const CommStream& stream() const { return stream_; }
  std::string_view backend() const { return backend_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Advances all groups of this rank without blocking. Under a CallGuard or the lock. Returns
  /// false.
  bool advance() override;
  void check(const detail::BackendRequest&) override;
  bool failed() const override { return failure_.recorded(); }
  void fail(detail::FailureKind kind, const control::Failure& failure) noexcept override;
  /// Runs fn. An Error other than InvalidArgument ends the world and is rethrown.
  template <class Fn>
  auto or_fail(const Fn& fn) {
    try {
      return fn();
    } catch (const std::exception& error) {
      record(error);
      throw;
    }
  }

 private:
  void record(detail::FailureKind kind, const control::Failure& failure) noexcept override;
  void propagate_failure() noexcept override;
  control::Failure failure() override { return failure_.failure(); }

  void record(const std::exception& error) noexcept;
  void check_all();
  template <class Fn>
  void attempt(const Fn& fn) noexcept;

  std::string_view backend_;
  std::shared_ptr<Communicator> host_world_;
  CommStream stream_;
  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point checked_;
  std::mutex record_mutex_;
  detail::FailureRecord failure_;
};

}  // namespace lockstep::device
