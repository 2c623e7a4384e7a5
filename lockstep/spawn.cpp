#include "lockstep/spawn.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/comm/host/host.h"
#include "lockstep/core/error.h"
#include "lockstep/core/memory.h"
#include "lockstep/core/text.h"
#include "lockstep/rank_options.h"

namespace lockstep {
namespace {

thread_local bool inside = false;

/// What is populated of the heap for each thread rank that keeps its pages.
constexpr std::size_t heap_of_a_rank = std::size_t{64} << 20;

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

bool detail::inside_spawn() { return inside; }

void spawn(int n, const std::function<void(Group)>& fn, const InitOptions& options) {
  if (inside) throw InvalidArgument("spawn: called inside spawn(); ranks cannot have ranks");
  const auto world = host::World::create(n);
  if (options.keep_pages) {
    keep_freed_memory(true);
    populate_heap(static_cast<std::size_t>(n) * heap_of_a_rank);
  }
  const bool told = std::getenv("OMP_NUM_THREADS") != nullptr;
  const int threads = told ? at::get_num_threads() : std::max(1, detail::usable_cores() / n);
  const auto ranks = detail::rank_options(options, threads);

  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  const auto run_rank = [&](int rank) {
    inside = true;
    at::set_num_threads(threads);          // of this thread's parallel regions
    std::shared_ptr<Communicator> member;  // until the others can tell why it leaves
    try {
      member = host::create(world, rank, ranks);
      fn(Group(member));
    } catch (...) {
      auto& error = errors[static_cast<std::size_t>(rank)];
      error = std::current_exception();
      world->fail({.rank = rank, .text = detail::concat("rank ", rank, ": ", text_of(error))});
    }
    // Tensors of the group's memory may outlive the rank; whoever waits for it must not.
    world->mark_gone(rank, "returned");
  };

  const int threads_before = at::get_num_threads();
  std::vector<std::thread> running;
  std::exception_ptr refused;
  try {
    for (int rank = 0; rank < n; ++rank) running.emplace_back(run_rank, rank);
  } catch (const std::system_error& error) {
    // Those that run already wait for ranks that will never come.
    const auto text = detail::concat("spawn: cannot start the thread of rank ", running.size(),
                                     " of ", n, ": ", error.what());
    world->fail({.rank = -1, .text = text});
    refused = std::make_exception_ptr(CommError(text));
  }
  for (auto& thread : running) thread.join();
  at::set_num_threads(threads_before);

  if (refused != nullptr) std::rethrow_exception(refused);
  const auto failure = world->failure();
  if (failure && failure->rank >= 0 && errors[static_cast<std::size_t>(failure->rank)] != nullptr) {
    std::rethrow_exception(errors[static_cast<std::size_t>(failure->rank)]);
  }
  for (const auto& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

}  // namespace lockstep
