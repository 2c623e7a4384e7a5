#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "comm/host/host.h"
#include "core/environment.h"

/// A rank that counts steps of known length: PROGRAM BEHAVIOUR. Each step is a barrier and
/// a pause. The pause depends on threads and ranks by the formula of tune::Scaling, with terms in
/// ms that the behaviour selects:
///
///     threads    Serial 1, parallel 24, added 200. One process wins.
///     ranks      24 ms with several ranks, 200 ms with one. Several ranks win.
///     no-share   As ranks. Exits with 3 if LOCKSTEP_SHARE_MEMORY is set.
///     few        As ranks. Ends after 3 steps.
///     none       Counts no step.
///     exit-3     Exits with 3.
namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 1 : std::atoi(text);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string behaviour = argc > 1 ? argv[1] : "";
  const auto& environment = lockstep::Environment::get();
  if (behaviour == "exit-3" || (behaviour == "no-share" && environment.share_memory)) {
    std::cerr << "this program has no use for it" << std::endl;
    return 3;
  }
  const auto world =
      lockstep::host::World::attach(environment.arena_fd.value(), environment.world_size.value());
  const auto group =
      lockstep::host::create(world, environment.rank.value(), {.timeout = environment.timeout});
  const double threads = number_in("OMP_NUM_THREADS");
  const double ranks = group->size();
  const bool by_threads = behaviour == "threads";
  const double by_ranks = ranks > 1 ? 24 : 200;
  const Milliseconds pause(by_threads ? 1 + 24 / threads + (ranks > 1 ? 200 * ranks : 0)
                                      : by_ranks);
  for (int step = 0; behaviour != "few" || step < 3; ++step) {
    group->barrier().wait();
    std::this_thread::sleep_for(pause);
    if (behaviour != "none") group->count_step();
  }
  return 0;
}
