#include "comm/met_failure.h"

#include "core/text.h"

namespace lockstep::inline v0_2::detail {

std::string MetFailure::text(std::string_view where, std::string_view cause) {
  if (met()) {
    return concat(where, ": the world failed earlier", first_.empty() ? "" : ", in ", first_, ": ",
                  cause, "; a failed world cannot be used again: start all ranks anew");
  }
  first_ = where.substr(0, where.find(" ("));
  set_met();
  return concat(where, ": ", cause);
}

}  // namespace lockstep::detail
