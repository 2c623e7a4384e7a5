#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/host.h"
#include "core/deadline.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/process.h"
#include "core/text.h"
#include "group/rank_options.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;
using namespace std::chrono_literals;

thread_local bool inside = false;

/// A rank that returns later than this after a failure is reported.
constexpr auto longest_end = 10s;

/// Bytes of the heap that are populated for each thread rank that keeps its pages.
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

/// The thread ranks that have not returned yet.
class RunningRanks {
 public:
  explicit RunningRanks(int n) : running_(static_cast<std::size_t>(n), true) {}

  void end(int rank) {
    {
      const std::lock_guard lock(mutex_);
      running_[static_cast<std::size_t>(rank)] = false;
    }
    ended_.notify_all();
  }

  /// Waits until all have returned. A thread cannot be ended, and fn's references are the caller's,
  /// so there is nothing else to do; but a rank that holds up the others is reported once.
  void await(const host::World& world, std::chrono::milliseconds timeout) {
    std::optional<detail::Deadline> failed, returned;
    std::unique_lock lock(mutex_);
    const auto none = [this] { return which(true).empty(); };
    while (!ended_.wait_for(lock, detail::Deadline::longest_nap, none)) {
      const auto failure = world.failure();
      if (failure && !failed)
        failed.emplace(std::min<std::chrono::milliseconds>(timeout, longest_end));
      if (!which(false).empty() && !returned) returned.emplace(timeout);
      if (failure && failed->passed())
        return report(lock, concat("the world failed: ", failure->text));
      if (returned && returned->passed()) {
        return report(lock, concat(detail::rank_list(which(false)), " returned"));
      }
    }
  }

 private:
  std::vector<int> which(bool running) const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < running_.size(); ++rank) {
      if (running_[rank] == running) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  void report(std::unique_lock<std::mutex>& lock, const std::string& what) {
    const auto ranks = which(true);
    const auto text =
        concat("spawn: ", what, "; spawn() still waits for ", detail::rank_list(ranks), " of ",
               running_.size(), ", which ", ranks.size() == 1 ? "has" : "have", " not returned");
    log::warn(text);
    // Without this line the program would hang in silence.
    const auto line = concat("lockstep: ", text, '\n');
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
    ended_.wait(lock, [this] { return which(true).empty(); });
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<bool> running_;
};

}  // namespace

bool detail::inside_spawn() { return inside; }

void spawn(int n, const std::function<void(Group)>& fn, const InitOptions& options) {
  if (inside) {
    throw InvalidArgument("spawn: called inside spawn(); ranks cannot have ranks",
                          {.operation = "spawn"});
  }
  const auto world = host::World::create(n);
  if (options.keep_freed_memory) {
    use_one_arena();
    keep_freed_memory();
    populate_heap(static_cast<std::size_t>(n) * heap_of_a_rank);
  }
  const bool told = std::getenv("OMP_NUM_THREADS") != nullptr;
  const int threads = told ? at::get_num_threads() : std::max(1, detail::usable_cores() / n);
  const auto ranks = detail::rank_options(options, threads);
  const bool flush = detail::flush_denormals_setting(options.flush_denormals);

  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  RunningRanks waiting_for(n);
  const auto run_rank = [&](int rank) {
    inside = true;
    const detail::ForkGuard process;
    at::set_num_threads(threads);          // of this thread's parallel regions
    flush_denormals(flush);                // in this thread and those that it creates
    std::shared_ptr<Communicator> member;  // until the others can tell why it leaves
    try {
      member = host::create(world, rank, ranks);
      fn(Group(member));
    } catch (...) {
      if (process.in_child()) throw;
      auto& error = errors[static_cast<std::size_t>(rank)];
      error = std::current_exception();
      world->fail({.rank = rank, .text = concat("rank ", rank, ": ", text_of(error))});
    }
    if (process.in_child()) return;  // fn has forked; the rank is the parent's
    // Tensors of the group's memory may outlive the rank; whoever waits for it must not.
    world->mark_gone(rank, "returned");
    waiting_for.end(rank);
  };

  const int threads_before = at::get_num_threads();
  std::vector<std::thread> running;
  std::exception_ptr refused;
  try {
    for (int rank = 0; rank < n; ++rank) running.emplace_back(run_rank, rank);
  } catch (const std::system_error& error) {
    // Those that run already wait for ranks that will never come.
    const auto text = concat("spawn: cannot start the thread of rank ", running.size(), " of ", n,
                             ": ", error.what());
    world->fail({.rank = -1, .text = text});
    refused = std::make_exception_ptr(CommError(text, {.operation = "spawn"}));
    for (int rank = static_cast<int>(running.size()); rank < n; ++rank) waiting_for.end(rank);
  }
  waiting_for.await(*world, ranks.timeout);
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
