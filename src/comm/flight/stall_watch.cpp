#include "comm/flight/stall_watch.h"

#include <string>

#include "core/log.h"
#include "core/text.h"

namespace lockstep::inline v0_2::detail {

std::vector<ObservedRank> StallWatch::ranks() const {
  std::vector<ObservedRank> found;
  for (auto& record : read_flight_records(recorder_->job())) {
    if (record->size() == recorder_->size()) found.push_back(observe(std::move(record)));
  }
  return found;
}

std::optional<Deadlock> StallWatch::deadlock() const {
  return find_deadlock(ranks(), recorder_->rank());
}

std::set<int> StallWatch::stopped() const {
  std::set<int> stopped;
  for (const auto& rank : ranks()) {
    if (rank.state == ObservedRank::State::stopped) stopped.insert(rank.rank());
  }
  return stopped;
}

void StallWatch::warn(std::chrono::duration<double> least) const {
  const auto found = diagnose(ranks(), least.count());
  if (found.waiting.empty() || found.waiting.front() != recorder_->rank()) return;
  std::string text = "stalled: ";
  for (const auto& sentence : found.text) text += concat(sentence, "; ");
  log::notice(text + concat("run `lockstep status ", recorder_->job(), '`'));
}

}  // namespace lockstep::detail
