#include "join/record_errors.h"

#include <cxxabi.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <typeinfo>

#include "core/environment.h"
#include "core/failure.h"
#include "core/log.h"
#include "core/signal_safe_text.h"
#include "core/system/crash_handler.h"
#include "core/system/files.h"
#include "core/system/process.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2 {
namespace {

std::atomic<bool> recorded{false};
std::terminate_handler previous_handler = nullptr;

/// The timestamp of an error in whole seconds. torchrun reports the earliest error as the root
/// cause. A CommError is an effect of another rank's error on most ranks, so its time is rounded
/// up.
std::string time_of(const std::exception& error) {
  using Seconds = std::chrono::seconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const bool is_effect = dynamic_cast<const CommError*>(&error) != nullptr;
  return std::to_string(
      (is_effect ? std::chrono::ceil<Seconds>(now) : std::chrono::floor<Seconds>(now)).count());
}

/// The world in which this process records its errors. It may do so after it has left the world,
/// and while it exits: it is never destroyed.
struct OwnWorld {
  std::mutex mutex;
  std::shared_ptr<host::World> world;
  int rank = -1;
  detail::ForkGuard process;

  static OwnWorld& get() {
    static auto& world = *new OwnWorld;
    return world;
  }
};

/// The type of the error as programs write it, without the inline namespace.
std::string type_name(const std::exception& error) {
  constexpr std::string_view inline_namespace = "v0_2::";
  const char* mangled = typeid(error).name();
  const std::unique_ptr<char, decltype(&std::free)> demangled(
      abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr), &std::free);
  std::string name = demangled ? demangled.get() : mangled;
  if (const auto at = name.find(inline_namespace); at != name.npos) {
    name.erase(at, inline_namespace.size());
  }
  return name;
}

void write(const std::string& path, const std::exception& error) {
  const nlohmann::json content{
      {"message",
       {{"message",
         detail::concat(type_name(error), ": ", detail::without_backtrace(error.what()))},
        {"extraInfo", {{"timestamp", time_of(error)}}}}}};
  // Renames a complete file, because torchrun fails on a partial one.
  const std::string partial = path + ".part";
  const auto text = content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto fill = [&](int out) { return detail::write_all(out, text.data(), text.size()); };
  if (const int failed = detail::replace_file(path.c_str(), partial.c_str(), fill, 0666)) {
    log::warn(detail::concat("TORCHELASTIC_ERROR_FILE: cannot write ", partial, ": ",
                             detail::why_not_opened(partial, failed)));
  }
}

[[noreturn]] void record_and_terminate() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    detail::record_error_of_rank(error);
  } catch (...) {
    // Not a std::exception: it has no text to record.
  }
  if (previous_handler != nullptr) previous_handler();
  std::abort();
}

}  // namespace

void detail::record_error_of_rank(const std::exception& error) noexcept {
  try {
    if (recorded.exchange(true)) return;
    record_in_world(record_of(error));
    set_crash_cause(without_backtrace(error.what()));
    const auto& path = Environment::get().error_file;
    if (!path.empty()) write(path, error);
  } catch (const std::exception&) {
    // The program reports its error in other ways, too.
  }
}

void detail::record_uncaught_errors() {
  static std::atomic<bool> installed{false};
  if (installed.exchange(true)) return;
  previous_handler = std::set_terminate(record_and_terminate);
}

void detail::record_errors_in(const std::shared_ptr<host::World>& world, int rank) {
  auto& own = OwnWorld::get();
  const std::lock_guard lock(own.mutex);
  own.world = world;
  own.rank = rank;
}

std::shared_ptr<host::World> detail::launched_world() {
  const auto& environment = Environment::get();
  const bool one_host = environment.master.empty();
  const auto& rank = one_host ? environment.rank : environment.local_rank;
  const auto& size = one_host ? environment.world_size : environment.local_size;
  if (!environment.arena_fd || !rank || !size || *rank >= *size) return nullptr;
  static const auto world = host::World::attach(*environment.arena_fd, *size);
  record_errors_in(world, *rank);
  return world;
}

void detail::record_in_world(const ErrorRecord& record) noexcept {
  try {
    auto& own = OwnWorld::get();
    if (own.process.in_child()) return;
    const auto is_known = [&] {
      const std::lock_guard lock(own.mutex);
      return own.world != nullptr;
    };
    if (!is_known() && launched_world() == nullptr) return;
    const std::lock_guard lock(own.mutex);
    own.world->record_error(own.rank, record, Environment::get().rank.value_or(own.rank));
  } catch (const std::exception&) {
    // Variables or memory that init() refuses.
  }
}

}  // namespace lockstep
