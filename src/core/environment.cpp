#include "core/environment.h"

#include <cmath>
#include <cstdlib>
#include <string_view>

#include "core/enum_names.h"
#include "core/text.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::detail {

std::optional<std::string_view> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> integer_variable(const char* name, int least) {
  const auto text = variable(name);
  if (!text) return std::nullopt;
  const auto number = parse_number<int>(*text);
  if (!number || *number < least) {
    throw InvalidArgument(
        concat(name, ": got '", *text, "', expected a whole number of at least ", least));
  }
  return number;
}

bool is_secret(std::string_view name) {
  return name == "LOCKSTEP_TOKEN" || name == "LOCKSTEP_NODE_TOKEN";
}

std::string variables_text(std::initializer_list<const char*> names) {
  return joined(names, ", ", [](const char* name) {
    const auto value = variable(name);
    return concat(name, value ? concat("=", *value) : " unset");
  });
}

}  // namespace lockstep::detail

namespace lockstep::inline v0_2 {

constexpr detail::EnumNames<ProgressMode::wait> progress_modes("auto", "thread", "wait");
constexpr detail::EnumNames<TransportKind::ucx> transports("auto", "tcp", "ucx");

std::string_view name(ProgressMode progress) { return progress_modes.of(progress); }

namespace {

using detail::concat;
using detail::integer_variable;
using detail::variable;

std::chrono::milliseconds seconds_variable(const char* name, int unset, bool or_never = false) {
  constexpr double longest = 1e9;
  const auto text = variable(name);
  if (!text) return std::chrono::seconds(unset);
  const auto seconds = detail::parse_number<double>(*text);
  const bool never = or_never && seconds == 0;
  if (!seconds || !(*seconds > 0 || never) || *seconds > longest) {
    throw InvalidArgument(concat(name, ": got '", *text, "', expected ",
                                 or_never ? "0 for never, or " : "",
                                 "seconds above 0 and at most 1e9, as in ", unset));
  }
  return std::chrono::milliseconds(static_cast<long long>(std::ceil(*seconds * 1000)));
}

bool flag_variable(const char* name, bool unset) {
  const auto text = variable(name);
  if (!text) return unset;
  if (*text != "0" && *text != "1") {
    throw InvalidArgument(concat(name, ": got '", *text, "', expected 0 or 1"));
  }
  return *text == "1";
}

std::optional<int> bucket_mib() {
  constexpr const char* name = "LOCKSTEP_BUCKET_MIB";
  constexpr int most = 1 << 20;
  const auto size = integer_variable(name, 1);
  if (size && *size > most) {
    throw InvalidArgument(concat(name, ": got ", *size, ", expected MiB from 1 to ", most));
  }
  return size;
}

std::optional<LogLevel> log_level() {
  constexpr detail::EnumNames<LogLevel::error> levels("debug", "info", "warn", "error");
  const auto text = variable("LOCKSTEP_LOG");
  return text ? std::optional(levels.parse("LOCKSTEP_LOG:", *text)) : std::nullopt;
}

}  // namespace

constexpr detail::EnumNames<Backend::tcp> backends("auto", "host", "mpi", "hierarchical", "tcp");

std::string_view name(Backend backend) { return backends.of(backend); }

Backend parse_backend(std::string_view text) { return backends.parse("backend:", text); }

Environment Environment::read() {
  Environment environment;
  environment.rank = integer_variable("LOCKSTEP_RANK", 0);
  environment.world_size = integer_variable("LOCKSTEP_WORLD_SIZE", 1);
  environment.arena_fd = integer_variable("LOCKSTEP_ARENA_FD", 0);
  environment.cores = integer_variable("LOCKSTEP_CORES", 1);
  environment.master = variable("LOCKSTEP_MASTER").value_or("");
  environment.token = variable("LOCKSTEP_TOKEN").value_or("");
  environment.listen_fd = integer_variable("LOCKSTEP_LISTEN_FD", 0);
  environment.local_rank = integer_variable("LOCKSTEP_LOCAL_RANK", 0);
  environment.local_size = integer_variable("LOCKSTEP_LOCAL_SIZE", 1);
  environment.run_id = variable("LOCKSTEP_RUN_ID").value_or("");
  environment.restart_count = integer_variable("LOCKSTEP_RESTART_COUNT", 0).value_or(0);
  environment.timeout = seconds_variable("LOCKSTEP_TIMEOUT", 600);
  environment.flush_denormals =
      flag_variable("LOCKSTEP_FLUSH_DENORMALS", detail::can_flush_denormals);
  environment.stall_warning = seconds_variable("LOCKSTEP_STALL_WARNING", 30, true);
  environment.flight_recorder = flag_variable("LOCKSTEP_FLIGHT_RECORDER", true);
  environment.crash_handler = flag_variable("LOCKSTEP_CRASH_HANDLER", true);
  environment.trace_folder = variable("LOCKSTEP_TRACE").value_or("");
  environment.log_level = ::lockstep::log_level();
  environment.backend =
      backends.parse("LOCKSTEP_BACKEND:", variable("LOCKSTEP_BACKEND").value_or("auto"));
  environment.transport =
      transports.parse("LOCKSTEP_TRANSPORT:", variable("LOCKSTEP_TRANSPORT").value_or("auto"));
  environment.host = variable("LOCKSTEP_HOST").value_or("");
  environment.interface = variable("LOCKSTEP_INTERFACE").value_or("");
  environment.heartbeat = seconds_variable("LOCKSTEP_HEARTBEAT", 15);
  environment.algorithm = variable("LOCKSTEP_ALGORITHM").value_or("auto");
  environment.error_file = variable("TORCHELASTIC_ERROR_FILE").value_or("");
  environment.bucket_mib = ::lockstep::bucket_mib();
  environment.share_memory = flag_variable("LOCKSTEP_SHARE_MEMORY", false);
  environment.progress =
      progress_modes.parse("LOCKSTEP_PROGRESS:", variable("LOCKSTEP_PROGRESS").value_or("auto"));
  // The variables of `lockstep run` take precedence over those of another launcher, which may
  // belong to an outer launcher.
  if (!environment.rank && !environment.world_size && !environment.arena_fd) {
    try {
      environment.launcher = Launcher::read();
    } catch (const InvalidArgument& problem) {
      environment.launcher_problem = problem.what();  // an error only if init() is called
    }
  }
  return environment;
}

const Environment& Environment::get() {
  static const Environment environment = read();
  return environment;
}

}  // namespace lockstep
