#include "lockstep/run_main.h"

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
#include "core/text.h"
#include "core/variable.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

using detail::concat;

/// Whether the text of a world's failure names a rank's own error, which that rank prints.
bool names_a_rank(std::string_view failure) {
  constexpr std::string_view mark = ": rank ";
  for (auto at = failure.find(mark); at != failure.npos; at = failure.find(mark, at + 1)) {
    const auto end = failure.find_first_not_of("0123456789", at + mark.size());
    if (end > at + mark.size() && failure.substr(end, 2) == ": ") return true;
  }
  return false;
}

/// Whether this rank prints the error, so that it is printed once.
bool is_reporter(const std::exception& error, const Group& world) {
  const bool first = world.rank() == 0;
  if (dynamic_cast<const CommError*>(&error) != nullptr) {
    // `lockstep run` itself reports why a world failed.
    return first && !names_a_rank(error.what()) && !Environment::get().rank;
  }
  const bool nested = dynamic_cast<const std::nested_exception*>(&error) != nullptr;
  // Other errors of Lockstep are raised on all ranks, except one that a loader's thread met, which
  // is nested.
  if (dynamic_cast<const Error*>(&error) != nullptr && !nested) return first;
  // Any other error is this rank's own. The world ends with the first of those. A rank that met the
  // same error later does not print it again.
  world.communicator().fail(error.what());
  try {
    world.communicator().look();
  } catch (const CommError& failure) {
    const std::string_view text = failure.what();
    return text.find(concat(": rank ", world.rank(), ": ")) != text.npos ||
           text.find(error.what()) == text.npos;
  }
  return true;
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

void wait_for_startup_reporter() {
  if (!is_startup_reporter()) std::this_thread::sleep_for(std::chrono::seconds(5));
}

int run_main(int argc, char** argv, const std::function<void(const Group&)>& fn,
             const RunOptions& options) {
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
