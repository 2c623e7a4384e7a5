#include <unistd.h>

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
#include "core/error_record.h"
#include "core/launcher.h"
#include "core/system/terminal.h"
#include "lockstep/error.h"
#include "lockstep/init.h"

namespace lockstep::inline v0_2 {
namespace {

/// Whether this rank prints the error, so that all ranks together print it at most once.
bool prints_error(const std::exception& error, const Group& world) {
  const bool first = world.rank() == 0;
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool by_launcher = Environment::get().rank.has_value();  // `lockstep run` reports errors
  if (dynamic_cast<const CommError*>(&error) != nullptr && !known->cause().empty()) {
    // The rank whose program threw prints its error. `lockstep run` reports all other failures.
    const bool printed = known->cause_kind() == ErrorKind::general;
    return first && !printed && !by_launcher;
  }
  const bool nested = dynamic_cast<const std::nested_exception*>(&error) != nullptr;
  // All ranks raise most other errors of Lockstep, so rank 0 prints them. Errors of a loader's
  // thread are nested, and only one rank has them. If this rank alone has an error, rank 0 gets it
  // as the failure of the world.
  if (known != nullptr && !nested) {
    const int rank = world.communicator().world_rank(world.rank());
    if (!first && !by_launcher) {
      const auto record = detail::record_of(error);
      world.communicator().fail_with(
          {.rank = record.is_of_rank() ? record.rank : rank, .text = record.text});
    }
    return first;
  }
  // Any other error is this rank's own. The first one becomes the failure of the world. A rank with
  // the same error text does not print it again.
  world.communicator().fail(error.what());
  try {
    world.communicator().make_progress();
  } catch (const CommError& failure) {
    return failure.rank() == world.communicator().world_rank(world.rank()) ||
           !failure.cause().ends_with(detail::without_backtrace(error.what()));
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
    if (!world) wait_for_startup_reporter();
    if (!world || prints_error(error, *world)) {
      const auto program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "";
      const bool colour = detail::shows_colour(STDERR_FILENO);
      std::cerr << detail::in_tone(program + ":", detail::Tone::error, colour) << ' '
                << error.what() << std::endl;
    }
    return 1;
  }
}

}  // namespace lockstep
