#include "launch/oom_watch.h"

#include "core/text.h"

namespace lockstep::inline v0_2::launch {

void OomWatch::update(Clock::time_point now) {
  constexpr auto interval = std::chrono::seconds(10);
  if (now - updated_ < interval) return;
  updated_ = now;
  before_ = last_;
  last_ = groups_.oom_kills();
}

std::string OomWatch::text() const {
  if (groups_.oom_kills() <= before_) return "";
  return detail::concat("the kernel ended a process of ", groups_.oom_scope(),
                        " because memory was short");
}

}  // namespace lockstep::launch
