#include "lockstep/core/environment.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/text.h"

namespace lockstep {
namespace {

using detail::concat;

std::optional<std::string_view> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

template <class Number>
std::optional<Number> parse(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<int> integer(const char* name, int least) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  const auto number = parse<int>(*text);
  if (!number || *number < least) {
    throw InvalidArgument(
        concat(name, ": got '", *text, "', expected a whole number of at least ", least));
  }
  return number;
}

std::chrono::milliseconds timeout() {
  constexpr const char* name = "LOCKSTEP_TIMEOUT";
  constexpr double longest = 1e9;
  const auto text = variable(name);
  if (!text) return std::chrono::minutes(10);
  const auto seconds = parse<double>(*text);
  if (!seconds || !std::isfinite(*seconds) || *seconds <= 0 || *seconds > longest) {
    throw InvalidArgument(concat(name, ": got '", *text, "', expected seconds above 0, as in 600"));
  }
  return std::chrono::milliseconds(static_cast<long long>(std::ceil(*seconds * 1000)));
}

std::string log_level() {
  const auto text = variable("LOCKSTEP_LOG");
  if (!text) return {};
  for (const std::string_view level : {"debug", "info", "warn", "error"}) {
    if (*text == level) return std::string(level);
  }
  throw InvalidArgument(
      concat("LOCKSTEP_LOG: got '", *text, "', expected debug, info, warn or error"));
}

std::string foreign_launcher() {
  // The variable that holds the number of ranks, for each launcher that is recognised.
  constexpr std::array<std::pair<const char*, const char*>, 5> launchers{
      {{"OMPI_COMM_WORLD_SIZE", "OpenMPI's mpirun"},
       {"PMI_SIZE", "MPICH's mpiexec"},
       {"SLURM_STEP_NUM_TASKS", "srun"},
       {"TORCHELASTIC_RUN_ID", "torchrun"},
       {"WORLD_SIZE", "a hand-made WORLD_SIZE"}}};
  for (const auto& [name, launcher] : launchers) {
    const auto text = variable(name);
    if (text && *text != "1") return launcher;
  }
  return {};
}

}  // namespace

Environment Environment::read() {
  Environment environment;
  environment.rank = integer("LOCKSTEP_RANK", 0);
  environment.world_size = integer("LOCKSTEP_WORLD_SIZE", 1);
  environment.arena_fd = integer("LOCKSTEP_ARENA_FD", 0);
  environment.cores = integer("LOCKSTEP_CORES", 1);
  environment.timeout = ::lockstep::timeout();
  environment.log_level = ::lockstep::log_level();
  environment.foreign_launcher = ::lockstep::foreign_launcher();
  return environment;
}

const Environment& Environment::get() {
  static const Environment environment = read();
  return environment;
}

}  // namespace lockstep
