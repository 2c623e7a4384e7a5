#include "launch/plan.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "comm/control/interfaces.h"
#include "comm/host/world.h"
#include "core/denormals_guard.h"
#include "core/folder_lock.h"
#include "core/text.h"
#include "launch/program.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;

/// glibc's own variables: nothing by mmap, nothing trimmed, the heap grown 64 MiB at a time. A
/// training step frees and takes the same memory again, and a page given back to the kernel is a
/// page fault later.
const Variables keep_freed_memory{{"MALLOC_MMAP_MAX_", "0"},
                                  {"MALLOC_TRIM_THRESHOLD_", "1099511627776"},
                                  {"MALLOC_TOP_PAD_", "67108864"}};

constexpr std::string_view restart_count = "LOCKSTEP_RESTART_COUNT";
constexpr const char* flush_denormals = "LOCKSTEP_FLUSH_DENORMALS";

const std::string* find(const Variables& variables, std::string_view name) {
  const auto found = std::find_if(variables.begin(), variables.end(),
                                  [&](const auto& variable) { return variable.first == name; });
  return found == variables.end() ? nullptr : &found->second;
}

void check(const Options& options) {
  if (options.ranks < 1 || options.ranks > host::max_ranks) {
    throw InvalidArgument(
        concat("got ", options.ranks, " ranks, expected 1 to ", host::max_ranks, " on one host"));
  }
  constexpr double longest = 1e9;
  if (options.timeout &&
      !(std::isfinite(*options.timeout) && *options.timeout > 0 && *options.timeout <= longest)) {
    throw InvalidArgument(
        concat("timeout: got ", *options.timeout, " s, expected more than 0 and at most 1e9"));
  }
  if (!options.interface.empty()) control::check_interface(options.interface, "interface");
  if (options.grace.count() < 0) {
    throw InvalidArgument(concat("grace: got ", options.grace.count(), " ms, expected 0 or more"));
  }
  if (options.restart_delay.count() < 0) {
    throw InvalidArgument(
        concat("restart-delay: got ", options.restart_delay.count(), " ms, expected 0 or more"));
  }
  if (options.linger && !(options.linger->count() >= 0 && options.linger->count() <= longest)) {
    throw InvalidArgument(
        concat("linger: got ", options.linger->count(), " s, expected 0 or more and at most 1e9"));
  }
  if (options.max_restarts < 0) {
    throw InvalidArgument(
        concat("max-restarts: got ", options.max_restarts, ", expected 0 or more"));
  }
}

Variables variables_of(int rank, const Plan& plan, std::size_t cores) {
  const auto& options = plan.options;
  Variables variables{{"LOCKSTEP_RANK", std::to_string(rank)},
                      {"LOCKSTEP_WORLD_SIZE", std::to_string(options.ranks)},
                      {"LOCKSTEP_ARENA_FD", std::to_string(arena_descriptor)},
                      {"LOCKSTEP_ERROR_FD", std::to_string(error_descriptor)},
                      {"LOCKSTEP_CORES", std::to_string(cores)},
                      {"LOCKSTEP_RUN_ID", plan.run_id},
                      {std::string(restart_count), "0"}};
  if (options.timeout) variables.emplace_back("LOCKSTEP_TIMEOUT", concat(*options.timeout));
  if (!options.interface.empty()) variables.emplace_back("LOCKSTEP_INTERFACE", options.interface);
  const auto add_unless_set = [&](const std::string& name, const std::string& value) {
    if (find(plan.inherited, name) == nullptr) variables.emplace_back(name, value);
  };
  if (options.flush_denormals) {
    variables.emplace_back(flush_denormals, *options.flush_denormals ? "1" : "0");
  } else {
    add_unless_set(flush_denormals, detail::can_flush_denormals ? "1" : "0");
  }
  add_unless_set("OMP_NUM_THREADS", std::to_string(plan.threads));
  if (options.keep_freed_memory) {
    for (const auto& [name, value] : keep_freed_memory) add_unless_set(name, value);
  }
  return variables;
}

}  // namespace

Plan make_plan(const Options& options, const Topology& topology, const Variables& inherited) {
  check(options);
  const auto* search_path = find(inherited, "PATH");
  auto division = divide_cores(topology, options.ranks, options.bind);
  Plan plan{.options = options,
            .run_id = detail::new_run_id(),
            .program = find_program(options.program,
                                    search_path ? *search_path : "/usr/local/bin:/usr/bin:/bin"),
            .topology = topology,
            .threads = division.threads,
            .ranks = {},
            .inherited = inherited};
  for (int rank = 0; rank < options.ranks; ++rank) {
    plan.ranks.push_back({.cpus = division.cpus.empty()
                                      ? std::vector<int>{}
                                      : std::move(division.cpus[static_cast<std::size_t>(rank)]),
                          .variables = variables_of(rank, plan, topology.cpus().size())});
  }
  return plan;
}

Plan make_plan(const Options& options) {
  return make_plan(options, Topology::read(), inherited_environment());
}

Plan attempt_of(const Plan& plan, int restarts) {
  Plan attempt = plan;
  auto& folder = attempt.options.log_directory;
  if (plan.options.max_restarts > 0 && !folder.empty()) folder /= concat("attempt-", restarts);
  for (auto& rank : attempt.ranks) {
    for (auto& [name, value] : rank.variables) {
      if (name == restart_count) value = std::to_string(restarts);
    }
  }
  return attempt;
}

Variables inherited_environment() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

}  // namespace lockstep::launch
