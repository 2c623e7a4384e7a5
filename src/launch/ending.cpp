#include "launch/ending.h"

#include <sys/wait.h>

#include <cstring>

#include "core/text.h"

namespace lockstep::inline v0_2::launch {

using detail::concat;

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? concat("SIG", name) : concat("signal ", signal);
}

std::string Ending::text() const {
  return by_signal ? signal_name(code) : concat("exit code ", code);
}

std::optional<Ending> ending_of(pid_t child) {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  return Ending{.by_signal = info.si_code != CLD_EXITED, .code = info.si_status};
}

}  // namespace lockstep::launch
