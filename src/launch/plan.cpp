#include "launch/plan.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "comm/control/address.h"
#include "comm/host/world/world.h"
#include "core/system/denormals_guard.h"
#include "core/system/files.h"
#include "core/text.h"
#include "launch/system.h"
#include "lockstep/denormals.h"
#include "lockstep/error.h"

namespace lockstep::inline v0_2::launch {
namespace {

using detail::concat;

/// Variables of glibc: no mmap, no trimming, heap growth by 64 MiB. A training step frees and
/// allocates the same memory again; every page that is returned to the kernel is a page fault
/// later.
const Variables keep_freed_memory{{"MALLOC_MMAP_MAX_", "0"},
                                  {"MALLOC_TRIM_THRESHOLD_", "1099511627776"},
                                  {"MALLOC_TOP_PAD_", "67108864"}};

/// Variables of glibc: a block of 1 MiB or more is returned to the kernel when it is freed. By
/// default glibc keeps blocks as large as the largest that was freed, up to 32 MiB.
const Variables return_freed_memory{{"MALLOC_MMAP_THRESHOLD_", "1048576"},
                                    {"MALLOC_TRIM_THRESHOLD_", "1048576"}};

/// Variable and setting of glibc from 2.35 on. Where the kernel uses transparent huge pages for
/// memory that asks for them (madvise), glibc asks for them for the heap. Otherwise it has no
/// effect.
constexpr const char* tunables = "GLIBC_TUNABLES";
constexpr std::string_view huge_page_tunable = "glibc.malloc.hugetlb";

constexpr const char* flush_denormals = "LOCKSTEP_FLUSH_DENORMALS";

/// Variables of a rank of several hosts. A launcher that such a rank starts does not pass them on.
constexpr std::array of_several_hosts{"LOCKSTEP_MASTER", "LOCKSTEP_TOKEN", "LOCKSTEP_LISTEN_FD",
                                      "LOCKSTEP_LOCAL_RANK", "LOCKSTEP_LOCAL_SIZE"};

void check(const Options& options) {
  if (options.ranks < 1 || options.ranks > host::max_ranks) {
    throw InvalidArgument(
        concat("got ", options.ranks, " ranks, expected 1 to ", host::max_ranks, " on one host"));
  }
  if (!options.interface.empty()) control::check_interface(options.interface, "interface");
}

/// local: the rank on this node.
Variables variables_of(int local, const Plan& plan) {
  const auto& options = plan.options;
  Variables variables{{"LOCKSTEP_RANK", std::to_string(plan.first_rank + local)},
                      {"LOCKSTEP_WORLD_SIZE", std::to_string(plan.world_size)},
                      {"LOCKSTEP_ARENA_FD", std::to_string(arena_descriptor)},
                      {"LOCKSTEP_CORES", std::to_string(plan.topology.cpus().size())},
                      {"LOCKSTEP_RUN_ID", plan.run_id},
                      {"LOCKSTEP_RESTART_COUNT", std::to_string(plan.restarts)}};
  if (options.timeout) variables.emplace_back("LOCKSTEP_TIMEOUT", concat(*options.timeout));
  if (options.stall_warning) {
    variables.emplace_back("LOCKSTEP_STALL_WARNING", concat(*options.stall_warning));
  }
  if (!options.interface.empty()) variables.emplace_back("LOCKSTEP_INTERFACE", options.interface);
  variables.insert(variables.end(), plan.gpus.variables.begin(), plan.gpus.variables.end());
  const auto add_unless_set = [&](const std::string& name, const std::string& value) {
    if (value_of(plan.inherited, name).empty()) variables.emplace_back(name, value);
  };
  if (options.flush_denormals) {
    variables.emplace_back(flush_denormals, *options.flush_denormals ? "1" : "0");
  } else {
    add_unless_set(flush_denormals, detail::can_flush_denormals ? "1" : "0");
  }
  if (!options.log_directory.empty()) {
    // Ranks may change their working directory.
    variables.emplace_back("LOCKSTEP_TRACE", std::filesystem::absolute(options.log_directory));
  }
  add_unless_set("OMP_NUM_THREADS", std::to_string(plan.threads));
  // By default SIGHUP starts UCX's debug mode in ranks whose MPI uses UCX, instead of ending them.
  add_unless_set("UCX_DEBUG_SIGNO", "0");
  for (const auto& [name, value] :
       options.keep_freed_memory ? keep_freed_memory : return_freed_memory) {
    add_unless_set(name, value);
  }
  if (options.huge_pages) {
    const auto own = value_of(plan.inherited, tunables);
    const auto before = own.empty() ? "" : own + ':';
    if (before.find(huge_page_tunable) == std::string::npos) {
      variables.emplace_back(tunables, concat(before, huge_page_tunable, "=1"));
    }
  }
  if (plan.master.empty()) return variables;
  variables.insert(variables.end(), {{"LOCKSTEP_LOCAL_RANK", std::to_string(local)},
                                     {"LOCKSTEP_LOCAL_SIZE", std::to_string(options.ranks)},
                                     {"LOCKSTEP_MASTER", plan.master},
                                     {"LOCKSTEP_TOKEN", plan.token}});
  if (plan.listens && local == 0) {
    variables.emplace_back("LOCKSTEP_LISTEN_FD", std::to_string(listen_descriptor));
  }
  return variables;
}

}  // namespace

const std::string* find_variable(const Variables& variables, std::string_view name) {
  const auto found = std::ranges::find(variables, name, &Variables::value_type::first);
  return found == variables.end() ? nullptr : &found->second;
}

std::string value_of(const Variables& variables, std::string_view name) {
  const auto* found = find_variable(variables, name);
  return found == nullptr ? "" : *found;
}

Plan make_plan(const Options& given, const Topology& topology, const Variables& inherited) {
  auto gpus = choose_gpus(given, inherited);
  Options options = given;
  if (options.rank_per_gpu) options.ranks = static_cast<int>(gpus.gpus.size());
  check(options);
  check_ranks(gpus, options.ranks);
  const auto* search_path = find_variable(inherited, "PATH");
  auto division = divide_cores(topology, options.ranks, options.bind);
  Plan plan{.options = options,
            .run_id = detail::new_run_id(),
            .program = find_program(options.program,
                                    search_path ? *search_path : "/usr/local/bin:/usr/bin:/bin"),
            .topology = topology,
            .threads = division.threads,
            .gpus = std::move(gpus),
            .ranks = {},
            .inherited = inherited,
            .world_size = options.ranks};
  std::erase_if(plan.inherited, [](const auto& variable) {
    return std::ranges::count(of_several_hosts, variable.first) > 0;
  });
  plan.ranks.resize(static_cast<std::size_t>(options.ranks));
  for (std::size_t rank = 0; rank < division.cpus.size(); ++rank) {
    plan.ranks[rank].cpus = std::move(division.cpus[rank]);
  }
  set_variables(plan);
  return plan;
}

Plan make_plan(const Options& options) {
  return make_plan(options, Topology::read(), inherited_environment());
}

Plan attempt_of(const Plan& plan, int restarts) {
  Plan attempt = plan;
  attempt.restarts = restarts;
  auto& folder = attempt.options.log_directory;
  if (plan.options.max_restarts > 0 && !folder.empty()) folder /= concat("attempt-", restarts);
  set_variables(attempt);
  return attempt;
}

void set_variables(Plan& plan) {
  int local = 0;
  for (auto& rank : plan.ranks) rank.variables = variables_of(local++, plan);
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

namespace {

/// The units that are divided among ranks: physical cores, or logical CPUs if there are more ranks
/// than cores.
using Units = std::vector<Topology::Core>;

Units units_for(const Topology& topology, std::size_t ranks) {
  if (ranks <= topology.cores.size()) return topology.cores;
  Units units;
  for (const auto& core : topology.cores) {
    for (const int cpu : core.cpus) units.push_back({core.node, core.package, {cpu}});
  }
  return units;
}

/// Divides the units begin … end-1 among count ranks, in order.
void slice(const Units& units, std::size_t begin, std::size_t end, std::size_t count,
           std::vector<std::vector<int>>& cpus) {
  const std::size_t size = end - begin;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<int> own;
    for (std::size_t u = begin + i * size / count; u < begin + (i + 1) * size / count; ++u) {
      own.insert(own.end(), units[u].cpus.begin(), units[u].cpus.end());
    }
    std::sort(own.begin(), own.end());
    cpus.push_back(std::move(own));
  }
}

/// Number of ranks on each node. Each rank is assigned to the node where it gets the most units.
std::vector<std::size_t> ranks_by_node(const std::vector<std::size_t>& nodes, std::size_t ranks) {
  std::vector<std::size_t> taken(nodes.size(), 0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t best = 0;
    for (std::size_t k = 1; k < nodes.size(); ++k) {
      // nodes[k] / (taken[k] + 1) is larger, without rounding.
      if (nodes[k] * (taken[best] + 1) > nodes[best] * (taken[k] + 1)) best = k;
    }
    ++taken[best];
  }
  return taken;
}

}  // namespace

Division divide_cores(const Topology& topology, int ranks, Bind bind) {
  const auto count = static_cast<std::size_t>(ranks);
  const auto units = units_for(topology, count);
  Division division;
  if (count > units.size()) return division;

  std::map<int, std::size_t> units_of_node;
  for (const auto& unit : units) ++units_of_node[unit.node];
  std::vector<std::size_t> nodes;
  for (const auto& [node, units_in_it] : units_of_node) nodes.push_back(units_in_it);
  if (count < nodes.size()) nodes = {units.size()};  // slices may cross nodes
  const auto taken = ranks_by_node(nodes, count);
  std::size_t smallest = units.size();  // slice of a rank, in units
  std::size_t begin = 0;
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    slice(units, begin, begin + nodes[k], taken[k], division.cpus);
    begin += nodes[k];
    if (taken[k] > 0) smallest = std::min(smallest, nodes[k] / taken[k]);
  }
  division.threads = static_cast<int>(smallest);
  if (bind == Bind::none) {
    division.cpus.clear();
    division.threads = std::max(1, static_cast<int>(topology.cores.size() / count));
  }
  return division;
}

}  // namespace lockstep::launch
