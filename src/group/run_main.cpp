#include <chrono>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "comm/communicator.h"
#include "core/environment.h"
#include "core/launcher.h"
#include "lockstep/error.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2 {
namespace {

/// Whether this rank prints the error, so that it is printed once.
bool is_reporter(const std::exception& error, const Group& world) {
  const bool first = world.rank() == 0;
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool by_launcher = Environment::get().rank.has_value();  // `lockstep run` reports errors
  if (dynamic_cast<const CommError*>(&error) != nullptr && !known->cause().empty()) {
    // A rank prints the error of its own program, and `lockstep run` reports why a world failed.
    const bool printed = known->cause_kind() == ErrorKind::general;
    return first && !printed && !by_launcher;
  }
  const bool nested = dynamic_cast<const std::nested_exception*>(&error) != nullptr;
  // Most other errors of Lockstep are raised on all ranks, except one that a loader's thread met,
  // which is nested. If this rank alone raised it, rank 0 meets it as the failure of the world.
  if (known != nullptr && !nested) {
    const int rank = world.communicator().world_rank(world.rank());
    if (!first && !by_launcher) {
      world.communicator().fail_with({.text = error.what(), .rank = rank});
    }
    return first;
  }
  // Any other error is this rank's own. The world ends with the first of those. A rank that met the
  // same error later does not print it again.
  world.communicator().fail(error.what());
  try {
    world.communicator().look();
  } catch (const CommError& failure) {
    return failure.rank() == world.communicator().world_rank(world.rank()) ||
           !failure.cause().ends_with(error.what());
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

/// For ranks that cannot meet the startup reporter in a world: leaves it time to print.
void wait_for_startup_reporter() {
  if (!is_startup_reporter()) std::this_thread::sleep_for(std::chrono::seconds(5));
}

/// Prints the text once. The ranks join the world and meet in an all_reduce, which the startup
/// reporter enters when it has printed.
void report_usage_error(const std::string& text, const InitOptions& options) {
  const auto print = [&] { std::cerr << text << (text.ends_with('\n') ? "" : "\n") << std::flush; };
  const bool reporter = is_startup_reporter();
  if (reporter) print();
  if (!has_other_ranks()) return;
  try {
    // A rank whose command line is right begins with another operation, which is a mismatch.
    std::string met = "usage error";
    init(options)
        .communicator()
        .all_reduce(met.data(), met.size(), DType::u8, ReduceOp::max)
        .wait();
  } catch (const CommError&) {
    // The startup reporter does something else: its command line is another.
    if (!reporter) print();
  } catch (const std::exception&) {
    wait_for_startup_reporter();
  }
}

}  // namespace

bool is_startup_reporter() {
  try {
    // Not by Environment: another of its variables may be what is wrong.
    if (const auto rank = detail::variable("LOCKSTEP_RANK")) return *rank == "0";
    const auto launcher = Launcher::read();
    return !launcher || launcher->rank == 0;
  } catch (const InvalidArgument&) {
    return true;
  }
}

int run_main(int argc, char** argv, const std::function<void(const Group&)>& fn,
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
    if (!world) wait_for_startup_reporter();
    if (!world || is_reporter(error, *world)) {
      const auto program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "";
      std::cerr << program << ": " << error.what() << std::endl;
    }
    return 1;
  }
}

}  // namespace lockstep
