#include "core/progress_mode.h"

#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {

std::string_view name(ProgressMode progress) {
  switch (progress) {
    case ProgressMode::automatic:
      return "auto";
    case ProgressMode::thread:
      return "thread";
    case ProgressMode::wait:
      return "wait";
  }
  return "unknown";
}

ProgressMode parse_progress_mode(std::string_view text) {
  for (const auto one : {ProgressMode::automatic, ProgressMode::thread, ProgressMode::wait}) {
    if (text == name(one)) return one;
  }
  throw InvalidArgument(
      detail::concat("progress: got '", text, "', expected auto, thread or wait"));
}

}  // namespace lockstep
