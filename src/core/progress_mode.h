#pragma once

#include <string_view>

namespace lockstep::inline v0_2 {

/// How operations over MPI advance between a rank's calls.
enum class ProgressMode {
  automatic,  ///< a thread, where MPI allows one
  thread,     ///< a thread, or an error
  wait        ///< no thread: a rank advances them when it begins or waits for one
};

/// "auto", "thread" or "wait".
std::string_view name(ProgressMode progress);

/// The progress of a name. Throws: InvalidArgument listing the valid names.
ProgressMode parse_progress_mode(std::string_view text);

}  // namespace lockstep
