#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "comm/communicator.h"
#include "comm/tasks/task_communicator.h"
#include "core/system/process.h"
#include "device/comm_stream.h"

namespace lockstep::inline v0_2::device {

/// One rank's state in a world that exchanges tensors of a device. The ranks also form a host
/// world, which exchanges memory of the host.
///
/// A progress thread advances operations while the program computes or waits for its device. It
/// detects ranks that have ended, timeouts and errors of the device's communication library.
class DeviceRankContext final : public detail::ComposedRankContext {
 public:
  /// Least time between two checks of other ranks, which cost system calls.
  static constexpr auto check_pause = std::chrono::milliseconds(20);

  /// backend: the name in error texts.
  DeviceRankContext(std::string_view backend, const std::shared_ptr<Communicator>& host_world,
                    c10::Device device, std::chrono::milliseconds timeout);
  ~DeviceRankContext() { stop_thread(); }

  const CommStream& stream() const { return stream_; }
  /// Whether this process may no longer use its devices: it exits, or it is a forked child.
  /// Destructors then release nothing on a device; the end of the process does.
  bool ended() const noexcept { return in_child() || detail::ProgressThread::stopped_at_exit(); }
  /// Shares an object with events or pinned memory. The object is not destroyed once ended() holds.
  template <class T>
  static std::shared_ptr<T> share(T&& object) {
    const auto destroy = [process = detail::ForkGuard()](T* shared) {
      if (!process.in_child() && !detail::ProgressThread::stopped_at_exit()) delete shared;
    };
    return {new T(std::forward<T>(object)), destroy};
  }

  /// The number of collectives and messages that this rank has launched on its device.
  std::uint64_t launched() const { return launched_; }
  void count_launch() { ++launched_; }

  /// Runs fn, which calls the device or its communication library. An error ends the world. It may
  /// be the effect of another rank's end or failure: that is thrown instead, if it is found within
  /// a short time. Under a CallGuard or the lock.
  template <class Fn>
  auto or_cause(const Fn& fn) {
    return or_fail<std::exception>([&] {
      try {
        return fn();
      } catch (const std::exception& error) {
        find_cause(error);
        throw;
      }
    });
  }

  /// Advances all groups of this rank without blocking. Under a CallGuard or the lock.
  bool advance() override;

 private:
  void begin_progress_thread() noexcept override;
  void propagate_failure() noexcept override;
  /// Throws: the failure of the world, or of a rank whose process ends within a short time.
  void find_cause(const std::exception& error);

  CommStream stream_;
  std::chrono::steady_clock::time_point checked_ = std::chrono::steady_clock::now();
  std::uint64_t launched_ = 0;
};

}  // namespace lockstep::device
