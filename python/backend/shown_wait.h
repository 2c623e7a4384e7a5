#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "backend/progress_work.h"
#include "core/deadline.h"
#include "core/system/process.h"

namespace lockstep::inline v0_2::detail {
class BackendRequest;
class FlightRecorder;
}  // namespace lockstep::detail

namespace lockstep_torch {

/// Shows in the flight record that a thread waits for a Work. Under the mutex of Progress.
class ShownWait {
 public:
  ShownWait(const BackendWork& work,
            std::shared_ptr<const lockstep::detail::BackendRequest> operation,
            lockstep::detail::FlightRecorder& recorder);
  ~ShownWait();
  ShownWait(const ShownWait&) = delete;
  ShownWait& operator=(const ShownWait&) = delete;

  bool is_of(const BackendWork& work) const { return &work_ == &work; }
  /// Shows the operation of the Work that a thread waits for and the missing ranks, and warns of a
  /// long wait, unless the wait for another Work is shown.
  static void show(std::optional<ShownWait>& shown, const BackendWork& work) noexcept;

 private:
  const BackendWork& work_;
  std::shared_ptr<const lockstep::detail::BackendRequest> operation_;
  lockstep::detail::FlightRecorder& recorder_;
  Clock::time_point begun_ = Clock::now();
  lockstep::detail::ReportTimes warnings_;
  lockstep::detail::ForkGuard process_;
};

}  // namespace lockstep_torch
