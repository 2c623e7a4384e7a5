#include "lockstep/launch/report.h"

#include <unistd.h>

#include <array>

#include "lockstep/core/text.h"

namespace lockstep::launch {
namespace {

using detail::concat;

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

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

}  // namespace

std::string report(const FirstCause& cause) {
  auto text = concat("lockstep: rank ", cause.rank, " of ", cause.ranks, " failed first: it ",
                     what_happened(cause), " (host ", host_name(), ", pid ", cause.pid, ").");
  if (!cause.reason.empty()) text += concat("\n  Reason: ", cause.reason);
  if (cause.last_lines.empty()) return text + "\n  It wrote nothing to stderr.";
  text += concat("\n  Its last ",
                 cause.last_lines.size() == 1 ? "line" : concat(cause.last_lines.size(), " lines"),
                 " of stderr:");
  for (const auto& line : cause.last_lines) text += concat("\n  | ", line);
  return text;
}

}  // namespace lockstep::launch
