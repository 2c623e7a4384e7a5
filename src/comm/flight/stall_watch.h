#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "comm/flight/diagnosis.h"
#include "comm/flight/flight_recorder.h"

namespace lockstep::inline v0_2::detail {

/// Searches the flight records of this host for deadlocks, stalls and stopped ranks.
class StallWatch {
 public:
  explicit StallWatch(std::shared_ptr<const FlightRecorder> recorder)
      : recorder_(std::move(recorder)) {}

  /// The deadlock that this rank is in, or waits for.
  std::optional<Deadlock> deadlock() const;
  /// The world ranks whose processes are stopped.
  std::set<int> stopped() const;
  /// Logs what ranks have waited for at least so long, if this rank is the lowest that
  /// waits for a missing one.
  void warn(std::chrono::duration<double> least) const;

 private:
  /// The ranks of this world with records on this host.
  std::vector<ObservedRank> ranks() const;

  std::shared_ptr<const FlightRecorder> recorder_;
};

}  // namespace lockstep::detail
