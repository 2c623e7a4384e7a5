#include "lockstep/launch/report.h"

#include <algorithm>

#include "lockstep/core/host_name.h"
#include "lockstep/core/text.h"

namespace lockstep::launch {
namespace {

using detail::concat;

std::string what_happened(const FirstCause& cause) {
  if (cause.ended_by_launcher) {
    const std::string hung = cause.stopped  ? "was stopped (SIGSTOP) and did not come along"
                             : cause.joined ? "did not come along"
                                            : "never called lockstep::init()";
    return hung + "; the launcher ended it";
  }
  if (!cause.ending.failed()) {
    return concat("left early with exit code 0",
                  cause.joined ? "" : ", without calling lockstep::init(),",
                  " while others waited for it");
  }
  if (cause.ending.by_signal) return concat("was ended by ", cause.ending.text());
  return concat("ended with ", cause.ending.text());
}

std::string who_failed(const FirstCause& cause) {
  return concat("rank ", cause.rank, " of ", cause.ranks, " failed first: it ",
                what_happened(cause), " (host ", detail::host_name(), ", pid ", cause.pid, ")");
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string report(const FirstCause& cause) {
  auto text = concat("lockstep: ", who_failed(cause), ".");
  if (!cause.reason.empty()) text += concat("\n  Reason: ", cause.reason);
  if (cause.last_lines.empty()) return text + "\n  It wrote nothing to stderr.";
  text += concat("\n  Its last ",
                 cause.last_lines.size() == 1 ? "line" : concat(cause.last_lines.size(), " lines"),
                 " of stderr:");
  for (const auto& line : cause.last_lines) text += concat("\n  | ", line);
  return text;
}

std::string restart_line(const FirstCause& cause, int restart, int most) {
  return concat("lockstep: restart ", restart, " of ", most, ": ", who_failed(cause),
                cause.reason.empty() ? "" : concat("; reason: ", one_line(cause.reason)),
                "; all ranks start again");
}

}  // namespace lockstep::launch
