#include "group/rank_options.h"

#include <sched.h>
#include <unistd.h>

#include "core/environment.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

host::Options rank_options(const InitOptions& options, int threads_per_rank) {
  const auto& environment = Environment::get();
  const auto timeout = options.timeout.value_or(environment.timeout);
  if (timeout.count() <= 0) {
    throw InvalidArgument(
        concat("init: got a timeout of ", timeout.count(), " ms, expected more than 0"));
  }
  return {.timeout = timeout,
          .threads_per_rank = threads_per_rank,
          // A rank that is bound to its own core sees only that one; who bound it says how many
          // there are.
          .cores = environment.cores.value_or(usable_cores())};
}

}  // namespace lockstep::detail
