#include "lockstep/error_file.h"

#include <c10/util/Type.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <typeinfo>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/log.h"
#include "lockstep/core/text.h"

namespace lockstep {
namespace {

std::atomic<bool> recorded{false};
std::terminate_handler handler_before = nullptr;

/// torchrun takes the earliest for the root cause, in whole seconds. A world's failure is an
/// effect on most ranks: rounded up, so that the cause goes before it.
std::string time_of(const std::exception& error) {
  using Seconds = std::chrono::seconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const bool heard = dynamic_cast<const CommError*>(&error) != nullptr;
  return std::to_string(
      (heard ? std::chrono::ceil<Seconds>(now) : std::chrono::floor<Seconds>(now)).count());
}

void write(const std::string& path, const std::exception& error) {
  const nlohmann::json content{
      {"message",
       {{"message", detail::concat(c10::demangle(typeid(error).name()), ": ", error.what())},
        {"extraInfo", {{"timestamp", time_of(error)}}}}}};
  // Whole or not at all: torchrun ends with an error of its own over half a file.
  const std::string part = path + ".part";
  std::ofstream out(part);
  out << content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  out.close();
  if (!out || std::rename(part.c_str(), path.c_str()) != 0) {
    log::warn(detail::concat("TORCHELASTIC_ERROR_FILE: cannot write ", path));
  }
}

[[noreturn]] void record_and_terminate() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    record_error(error);
  } catch (...) {
    // Of no words.
  }
  if (handler_before != nullptr) handler_before();
  std::abort();
}

}  // namespace

void record_error(const std::exception& error) noexcept {
  try {
    const auto& path = Environment::get().error_file;
    if (!path.empty() && !recorded.exchange(true)) write(path, error);
  } catch (const std::exception&) {
    // What ended the program is told by other ways too.
  }
}

void detail::record_uncaught_errors() {
  static std::atomic<bool> installed{false};
  if (Environment::get().error_file.empty() || installed.exchange(true)) return;
  handler_before = std::set_terminate(record_and_terminate);
}

}  // namespace lockstep
