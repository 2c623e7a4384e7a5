#include "lockstep/init.h"

#include <ATen/Parallel.h>

#include "core/environment.h"
#include "group/compute_threads.h"
#include "group/store_meeting.h"
#include "group/world_device.h"
#include "join/join_world.h"
#include "join/record_errors.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

/// Sets the number of LibTorch's compute threads, if it is more than 0, and returns the number.
int set_compute_threads(int threads) {
  if (threads > 0) at::set_num_threads(threads);
  return at::get_num_threads();
}

}  // namespace

int restart_count() { return Environment::get().restart_count; }

void record_error(const std::exception& error) noexcept { detail::record_error_of_rank(error); }

Group init(const InitOptions& options) {
  if (detail::inside_spawn()) {
    throw InvalidArgument("init: called inside spawn(); use the Group that spawn() passed",
                          {.operation = "init"});
  }
  // Its ranks exchange memory of the host.
  const Group host(detail::join_world(
      {.backend = options.backend,
       .timeout = options.timeout,
       .keep_freed_memory = options.keep_freed_memory,
       .flush_denormals = options.flush_denormals,
       .threads = {.set_number = set_compute_threads,
                   .flush_denormals = detail::flush_denormals_in_compute_threads},
       .meet_by_store = detail::meet_by_store_of_torchrun}));
  try {
    return detail::on_device_of_world(host, options);
  } catch (Error& error) {
    error.set_operation("init");
    throw;
  }
}

Group join(const std::string& name, int rank, int size, const WorldOptions& options) {
  return Group(detail::join_named(name, rank, size, options.timeout, options.heap_bytes,
                                  at::get_num_threads()));
}

}  // namespace lockstep
