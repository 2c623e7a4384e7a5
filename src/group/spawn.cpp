#include <ATen/Parallel.h>

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
#include "core/error_record.h"
#include "core/log.h"
#include "core/system/memory.h"
#include "core/system/process.h"
#include "core/text.h"
#include "group/compute_threads.h"
#include "group/world_device.h"
#include "join/join_world.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;
using namespace std::chrono_literals;

thread_local bool inside = false;

/// Longest time that a rank may take to return after a failure before it is reported.
constexpr auto max_return_time = 10s;

/// Bytes of heap that are populated in advance for each thread rank.
constexpr std::size_t heap_bytes_per_rank = std::size_t{64} << 20;

/// The failure of the world by an error of the rank, or of another rank that the error repeats.
detail::Failure failure_by(int rank, const std::exception_ptr& error) {
  using Kind = detail::Failure::Kind;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    const auto record = detail::record_of(known);
    if (record.is_of_rank()) return {Kind::error, record.rank, record.text};
    return {Kind::error, rank, concat("rank ", rank, ": ", record.text)};
  } catch (...) {
    return {Kind::error, rank,
            concat("rank ", rank, ": an exception that is not a std::exception")};
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

  /// Waits until all ranks have returned. A thread cannot be ended, and fn refers to objects of the
  /// caller, so spawn() cannot return earlier. Reports once which ranks it waits for.
  void await(const host::World& world, std::chrono::milliseconds timeout) {
    std::optional<detail::Deadline> failed, returned;
    std::unique_lock lock(mutex_);
    const auto none = [this] { return ranks_that_run(true).empty(); };
    while (!ended_.wait_for(lock, detail::Deadline::longest_nap, none)) {
      const auto failure = world.failure();
      if (failure && !failed)
        failed.emplace(std::min<std::chrono::milliseconds>(timeout, max_return_time));
      if (!ranks_that_run(false).empty() && !returned) returned.emplace(timeout);
      if (failure && failed->passed())
        return report(lock, concat("the world failed: ", failure->text));
      if (returned && returned->passed()) {
        return report(lock, concat(detail::rank_list(ranks_that_run(false)), " returned"));
      }
    }
  }

 private:
  std::vector<int> ranks_that_run(bool running) const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < running_.size(); ++rank) {
      if (running_[rank] == running) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

  void report(std::unique_lock<std::mutex>& lock, const std::string& what) {
    const auto ranks = ranks_that_run(true);
    const auto text =
        concat("spawn: ", what, "; spawn() still waits for ", detail::rank_list(ranks), " of ",
               running_.size(), ", which ", ranks.size() == 1 ? "has" : "have", " not returned");
    log::notice(text);  // otherwise the program would hang without any message
    ended_.wait(lock, [this] { return ranks_that_run(true).empty(); });
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<bool> running_;
};

}  // namespace

bool detail::inside_spawn() { return inside; }

void spawn(int n, const std::function<void(Group)>& fn, const InitOptions& options) {
  if (inside) {
    throw InvalidArgument(
        "spawn: got a call inside spawn(), expected one outside: a rank cannot spawn ranks",
        {.operation = "spawn"});
  }
  const auto world = host::World::create(n);
  if (options.keep_freed_memory) {
    use_one_arena();
    keep_freed_memory();
    populate_heap(static_cast<std::size_t>(n) * heap_bytes_per_rank);
  }
  const bool threads_are_set = std::getenv("OMP_NUM_THREADS") != nullptr;
  const int threads =
      threads_are_set ? at::get_num_threads() : std::max(1, detail::usable_cores() / n);
  const auto ranks = detail::rank_options(options.timeout, threads);
  const bool flush = detail::flush_denormals_setting(options.flush_denormals);

  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  RunningRanks running_ranks(n);
  const auto run_rank = [&](int rank) {
    inside = true;
    const detail::ForkGuard process;
    at::set_num_threads(threads);  // of this thread's parallel regions
    flush_denormals(flush);        // in this thread and those that it creates
    // Destroyed only after the failure is recorded, so that other ranks report that cause.
    std::shared_ptr<Communicator> member;
    try {
      member = host::create(world, rank, ranks);
      fn(detail::on_device_of_world(Group(member), options));
    } catch (...) {
      if (process.in_child()) throw;
      auto& error = errors[static_cast<std::size_t>(rank)];
      error = std::current_exception();
      world->fail(failure_by(rank, error));
    }
    if (process.in_child()) return;  // fn has forked, and this process is not the rank
    // Ends the waits of other ranks. Tensors may keep the rank's group alive for longer.
    world->mark_ended(rank, "returned");
    running_ranks.end(rank);
  };

  const int threads_before = at::get_num_threads();
  std::vector<std::thread> running;
  std::exception_ptr start_error;
  try {
    for (int rank = 0; rank < n; ++rank) running.emplace_back(run_rank, rank);
  } catch (const std::system_error& error) {
    // Ranks that already run would wait forever for ranks that were not started.
    const auto text = concat("spawn: cannot start the thread of rank ", running.size(), " of ", n,
                             ": ", error.what());
    world->fail({.rank = -1, .text = text});
    start_error = std::make_exception_ptr(CommError(text, {.operation = "spawn"}));
    for (int rank = static_cast<int>(running.size()); rank < n; ++rank) running_ranks.end(rank);
  }
  running_ranks.await(*world, ranks.timeout);
  for (auto& thread : running) thread.join();
  at::set_num_threads(threads_before);

  if (start_error != nullptr) std::rethrow_exception(start_error);
  const auto failure = world->failure();
  if (failure && failure->rank >= 0 && errors[static_cast<std::size_t>(failure->rank)] != nullptr) {
    std::rethrow_exception(errors[static_cast<std::size_t>(failure->rank)]);
  }
  for (const auto& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

}  // namespace lockstep
