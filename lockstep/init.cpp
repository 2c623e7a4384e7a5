#include "lockstep/init.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <optional>
#include <string>
#include <tuple>

#include "lockstep/comm/host/host.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/memory.h"
#include "lockstep/core/text.h"
#include "lockstep/rank_options.h"
#include "lockstep/spawn.h"

namespace lockstep {
namespace {

using detail::concat;

/// Set by the first init() that found its world; never cleared, since a world cannot be joined
/// twice.
std::atomic<bool> joined{false};

std::string shown(const char* name, const std::optional<int>& value) {
  return concat(name, value ? concat("=", *value) : " unset");
}

/// The world that `lockstep run` made.
Group join_launched(const Environment& environment, const host::Options& options) {
  const auto& [rank, size, fd] =
      std::tie(environment.rank, environment.world_size, environment.arena_fd);
  if (!rank || !size || !fd || *rank >= *size) {
    throw InvalidArgument(concat("init: contradictory environment: ", shown("LOCKSTEP_RANK", rank),
                                 ", ", shown("LOCKSTEP_WORLD_SIZE", size), ", ",
                                 shown("LOCKSTEP_ARENA_FD", fd),
                                 "; expected all three from `lockstep run`, or none"));
  }
  return Group(host::create(host::World::attach(*fd, *size), *rank, options));
}

}  // namespace

Group init(const InitOptions& options) {
  if (detail::inside_spawn()) {
    throw InvalidArgument("init: called inside spawn(); use the Group that spawn() passed");
  }
  if (joined.exchange(true)) {
    throw InvalidArgument(
        "init: called a second time in this process; keep the Group that the first call returned");
  }
  try {
    const auto& environment = Environment::get();
    const bool launched = environment.rank || environment.world_size || environment.arena_fd;
    if (!launched && !environment.foreign_launcher.empty()) {
      throw BackendUnavailable(
          concat("init: started by ", environment.foreign_launcher,
                 ", whose worlds this version cannot join; start the program with `lockstep run -n "
                 "N PROGRAM`"));
    }
    if (options.keep_pages) keep_freed_memory(false);
    const auto ranks = detail::rank_options(options, at::get_num_threads());
    if (launched) return join_launched(environment, ranks);
    return Group(host::create(host::World::create(1), 0, ranks));
  } catch (const InvalidArgument&) {
    joined = false;  // nothing was joined: the caller may mend it and try again
    throw;
  } catch (const BackendUnavailable&) {
    joined = false;
    throw;
  }
}

}  // namespace lockstep
