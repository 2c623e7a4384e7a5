#include "lockstep/init.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sqrt.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/host.h"
#include "core/deadline.h"
#include "core/environment.h"
#include "core/failure.h"
#include "core/launcher.h"
#include "core/log.h"
#include "core/operation_error.h"
#include "core/system/memory.h"
#include "core/system/process.h"
#include "core/system/terminal.h"
#include "core/text.h"
#include "group/store_meeting.h"
#include "group/world_device.h"
#include "join/join_world.h"
#include "join/record_errors.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::as_operation;
using detail::concat;
using detail::throw_invalid;

/// Whether the calling thread is a rank of spawn().
thread_local bool inside_spawn = false;

/// Sets the number of LibTorch's compute threads, if it is more than 0, and returns the number.
int set_compute_threads(int threads) {
  if (threads > 0) at::set_num_threads(threads);
  return at::get_num_threads();
}

/// Calls one of LibTorch's vector functions, which MKL prepares in the first call. If two threads
/// that flush denormals make the first calls at the same time, one may get results of 12 bits. On
/// busy cores that happened in 46 of 6,000 processes, and in none of 7,000 after such a call.
void prepare_vector_functions() { at::sqrt(at::ones({64})); }

/// Flushes or keeps denormals in the calling thread and in its OpenMP threads, which may already
/// exist.
void flush_denormals_in_compute_threads(bool flush) {
  prepare_vector_functions();
  flush_denormals(flush);
  const int threads = at::get_num_threads();
  if (threads == 1) return;
  // TensorIterator runs in LibTorch's own OpenMP threads, with one element per thread here.
  // at::parallel_for is a template: compiled here, without OpenMP, it would use only the calling
  // thread.
  const auto elements = at::empty({threads}, at::kByte);
  auto each = at::TensorIterator::borrowing_nullary_op(elements);
  const auto set = [flush](char**, const std::int64_t*, std::int64_t, std::int64_t) {
    flush_denormals(flush);
  };
  each.for_each(set, /*grain_size=*/1);
}

}  // namespace

int restart_count() { return Environment::get().restart_count; }

void record_error(const std::exception& error) noexcept { detail::record_error_of_rank(error); }

Group init(const InitOptions& options) {
  if (inside_spawn) {
    throw_invalid("init", "called inside spawn(); use the Group that spawn() passed");
  }
  // The world of a call that got no device: the next call may ask for another.
  static std::optional<Group> refused;
  // Its ranks exchange memory of the host.
  const Group host = refused
                         ? *std::exchange(refused, std::nullopt)
                         : Group(detail::join_world(
                               {.backend = options.backend,
                                .timeout = options.timeout,
                                .keep_freed_memory = options.keep_freed_memory,
                                .flush_denormals = options.flush_denormals,
                                .threads = {.set_number = set_compute_threads,
                                            .flush_denormals = flush_denormals_in_compute_threads},
                                .meet_by_store = detail::meet_by_store_of_torchrun}));
  try {
    return as_operation("init", [&] { return detail::on_device_of_world(host, options); });
  } catch (const InvalidArgument&) {
    refused = host;
    throw;
  }
}

Group join(const std::string& name, int rank, int size, const WorldOptions& options) {
  return Group(detail::join_named(name, rank, size, options.timeout, options.heap_bytes,
                                  at::get_num_threads()));
}

namespace {

/// Longest time that a rank may take to return after a failure before it is reported.
constexpr auto max_return_time = std::chrono::seconds(10);

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
    return {Kind::error, rank, concat("rank ", rank, ": ", detail::current_error_text())};
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

void spawn(int n, const std::function<void(Group)>& fn, const InitOptions& options) {
  if (inside_spawn) {
    throw_invalid("spawn",
                  "got a call inside spawn(), expected one outside: a rank cannot spawn ranks");
  }
  if (n < 1 || n > host::max_ranks) {
    throw_invalid("spawn", "got ", n, " ranks, expected 1 to ", host::max_ranks);
  }
  const auto world = host::World::create(n);
  if (options.keep_freed_memory) {
    use_one_arena();
    keep_freed_memory();
    populate_heap(static_cast<std::size_t>(n) * heap_bytes_per_rank);
  }
  const int threads = detail::variable("OMP_NUM_THREADS") ? at::get_num_threads()
                                                          : std::max(1, detail::usable_cores() / n);
  const auto ranks = detail::rank_options("spawn", options.timeout, threads);
  const bool flush = options.flush_denormals.value_or(Environment::get().flush_denormals);

  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  RunningRanks running_ranks(n);
  const auto run_rank = [&](int rank) {
    inside_spawn = true;
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

  prepare_vector_functions();
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

namespace {

/// Whether the error repeats what the program of another rank threw. run_main() of that rank prints
/// it.
bool is_of_other_program(const std::exception& error) {
  const auto* failed = dynamic_cast<const CommError*>(&error);
  return failed != nullptr && !failed->cause().empty() &&
         failed->cause_kind() == ErrorKind::general;
}

/// Whether this rank prints the error, so that all ranks together print it at most once.
bool prints_error(const std::exception& error, const Group& world) {
  const auto* known = dynamic_cast<const Error*>(&error);
  const auto* failed = dynamic_cast<const CommError*>(&error);
  // Rank 0 prints for all, but not of itself: it may have left the world, and others after it.
  const bool of_first = failed != nullptr && failed->rank() == 0 && world.size() > 1;
  const bool first = of_first ? world.rank() > 0 : world.rank() == 0;
  const bool by_launcher = Environment::get().rank.has_value();  // `lockstep run` reports errors
  if (failed != nullptr && !failed->cause().empty()) {
    // `lockstep run` reports all other failures.
    return first && !is_of_other_program(error) && !by_launcher;
  }
  const bool nested = dynamic_cast<const std::nested_exception*>(&error) != nullptr;
  // All ranks raise most other errors of Lockstep. Errors of a loader's thread are nested, and only
  // one rank has them. The first error becomes the failure of the world, which that rank prints.
  const int rank = world.communicator().world_rank(world.rank());
  const bool of_all = known != nullptr && !nested;
  if (of_all && by_launcher) return first;
  const auto record = detail::record_of(error);
  world.communicator().fail_with({.kind = detail::Failure::Kind::error,
                                  .rank = record.is_of_rank() ? record.rank : rank,
                                  .text = record.text});
  try {
    world.communicator().make_progress();
  } catch (const CommError& failure) {
    if (failure.rank() == rank) return true;
    // Rank 0 prints for all if no rank's program caused the failure. A rank with an error of its
    // own and the same text does not print it again.
    if (of_all) return first && failure.cause_kind() != ErrorKind::general;
    return !failure.cause().ends_with(record.text);
  }
  return true;
}

/// Whether a launcher has started other ranks besides this one.
bool has_other_ranks() {
  try {
    if (detail::variable("LOCKSTEP_RANK")) return true;
    const auto launcher = Launcher::read();
    return launcher && launcher->size > 1;
  } catch (const InvalidArgument&) {
    return true;
  }
}

/// For ranks that cannot join a world with the startup reporter: gives that rank time to print.
void wait_for_startup_reporter() {
  if (!is_startup_reporter()) std::this_thread::sleep_for(std::chrono::seconds(5));
}

/// Prints the text once. All ranks join the world and call an all_reduce. The startup reporter
/// prints before it does.
void report_usage_error(const std::string& text, const InitOptions& options) {
  const auto print = [&] { std::cerr << text << (text.ends_with('\n') ? "" : "\n") << std::flush; };
  const bool reporter = is_startup_reporter();
  if (reporter) print();
  if (!has_other_ranks()) return;
  try {
    // A rank with a valid command line issues another operation, which is a mismatch.
    std::string operation_tag = "usage error";
    init(options)
        .communicator()
        .all_reduce(operation_tag.data(), operation_tag.size(), DType::u8, ReduceOp::max)
        .wait();
  } catch (const CommError&) {
    // The command line of the startup reporter is valid, so it does not print.
    if (!reporter) print();
  } catch (const std::exception&) {
    wait_for_startup_reporter();
  }
}

}  // namespace

bool is_startup_reporter() {
  try {
    // Does not use Environment, which throws if any of its variables is invalid.
    if (const auto rank = detail::variable("LOCKSTEP_RANK")) return *rank == "0";
    const auto launcher = Launcher::read();
    return !launcher || launcher->rank == 0;
  } catch (const InvalidArgument&) {
    return true;
  }
}

int run_main(int argc, const char* const* argv, const std::function<void(const Group&)>& fn,
             const RunOptions& options) {
  if (!options.usage_error.empty()) {
    report_usage_error(options.usage_error, options.init);
    return 2;
  }
  std::optional<Group> world;
  try {
    if (options.threads > 0) {
      spawn(options.threads, fn, options.init);
    } else {
      world = init(options.init);
      fn(*world);
    }
    return 0;
  } catch (const std::exception& error) {
    record_error(error);
    // The program of another rank may throw while this one is in init().
    const bool cannot_join = !world && !is_of_other_program(error);
    if (cannot_join) wait_for_startup_reporter();
    if (world ? prints_error(error, *world) : cannot_join) {
      const auto program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "";
      const bool colour = detail::shows_colour(STDERR_FILENO);
      std::cerr << detail::in_tone(program + ":", detail::Tone::error, colour) << ' '
                << error.what() << std::endl;
    }
    return 1;
  }
}

}  // namespace lockstep
